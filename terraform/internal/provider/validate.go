package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
)

// ValidateConfig refuses values that the schemas of the API exclude.
func (r *object) ValidateConfig(_ context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	config, err := values(req.Config.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid configuration", err.Error())
		return
	}
	for _, a := range r.kind.attributes {
		a.validate(config[a.name], path.Root(a.name), "/"+a.apiName(), &resp.Diagnostics)
	}
}

func (a *attribute) validate(x any, at path.Path, pointer string, diags *diag.Diagnostics) {
	wrong := func(format string, args ...any) {
		diags.AddAttributeError(at, "Invalid value", pointer+" must be "+fmt.Sprintf(format, args...)+".")
	}
	switch x := x.(type) {
	case nil, unknown:
		return
	case string:
		if len(a.choices) > 0 && a.form == textForm && !slices.Contains(a.choices, any(x)) {
			wrong("%s", oneOf(a.choices))
		}
		if _, err := time.Parse(time.RFC3339Nano, x); a.instant && err != nil {
			wrong("a time such as 2026-01-31T12:00:00Z (RFC 3339)")
		}
	case json.Number:
		n, _ := x.Float64()
		switch {
		case a.form == integerForm && strings.Contains(x.String(), "."):
			wrong("a whole number")
		case len(a.choices) > 0 && !slices.ContainsFunc(a.choices, func(c any) bool { return c == n }):
			wrong("%s", oneOf(a.choices))
		case a.minimum != nil && n < *a.minimum, a.maximum != nil && n > *a.maximum:
			wrong("%s", between(a.minimum, a.maximum))
		}
	case []any:
		for i, item := range x {
			switch text, isText := item.(string); {
			case a.form == objectListForm:
				a.validateFields(item, at.AtListIndex(i), fmt.Sprintf("%s/%d", pointer, i), diags)
			case isText && len(a.choices) > 0 && !slices.Contains(a.choices, any(text)):
				diags.AddAttributeError(at, "Invalid value", fmt.Sprintf("%s/%d must be %s, not %q.", pointer, i, oneOf(a.choices), text))
			}
		}
	case map[string]any:
		if a.form == objectForm {
			a.validateFields(x, at, pointer, diags)
			return
		}
		for name, entry := range x {
			if a.form == objectMapForm {
				a.validateFields(entry, at.AtMapKey(name), pointer+"/"+name, diags)
			}
		}
	}
}

func (a *attribute) validateFields(x any, at path.Path, pointer string, diags *diag.Diagnostics) {
	object, _ := x.(map[string]any)
	for _, f := range a.fields {
		f.validate(object[f.name], at.AtName(f.name), pointer+"/"+f.name, diags)
	}
}

func oneOf(choices []any) string {
	texts := make([]string, len(choices))
	for i, c := range choices {
		texts[i] = fmt.Sprint(c)
	}
	return "one of " + strings.Join(texts, ", ")
}

func between(minimum, maximum *float64) string {
	switch {
	case maximum == nil:
		return fmt.Sprintf("at least %.0f", *minimum)
	case minimum == nil:
		return fmt.Sprintf("at most %.0f", *maximum)
	}
	return fmt.Sprintf("from %.0f to %.0f", *minimum, *maximum)
}
