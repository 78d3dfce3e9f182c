package dashboard

import (
	"context"
	"regexp"
	"strings"
	"unicode"

	"github.com/a-h/templ"
)

// What required fields for something with a name say if they are empty.
const (
	missingPlan  = "Choose a plan."
	missingRule  = "Choose a rule."
	missingQuota = "Choose a quota."
)

// namesID returns the id of the list of options of a field.
func (x field) namesID() string { return x.id() + "-names" }

// listed returns the field with a list of options.
func (x field) listed(options []option) field {
	attrs := listedIn(x.namesID())
	for _, o := range options {
		if o.Value == "" {
			attrs["placeholder"] = o.Name
		}
	}
	if x.Missing == "" {
		x.Missing = x.missing() // without the placeholder as an example
	}
	x.Attrs = with(x.Attrs, attrs)
	return x
}

// preset returns the field with the only option there is, if it must have one.
func (x field) preset(options []option) field {
	if x.Value == "" && x.Attrs["required"] == true && len(options) == 1 {
		x.Value = options[0].Value
	}
	return x
}

// listedIn are the attributes of an input whose value must be one of a list.
func listedIn(id string) templ.Attributes {
	return templ.Attributes{
		"list": id, "autocomplete": "off", "spellcheck": "false", "maxlength": "200", "data-listed": sentence(oneOfTheList.Message),
	}
}

// chosenFrom returns the options that can be chosen, without the one for an empty field.
func chosenFrom(options []option) (out []option) {
	for _, o := range options {
		if o.Value != "" {
			out = append(out, o)
		}
	}
	return out
}

// chosenName returns the name of the chosen option for the line below the field: "" if it says no
// more than the value.
func chosenName(options []option, value string) string {
	if name := nameOfOption(options, value); name != value {
		return name
	}
	return ""
}

// namedFields are the fields of forms that name a plan or a rule by its slug.
var (
	planNameFields = []string{"plan", "tier", "fallback_plan", "like", "offered_plans", "to"}
	ruleNameFields = []string{"rule"}
)

var slugText = regexp.MustCompile(`^[a-z0-9*-]*$`)

// slugsOfNames replaces the names of plans and rules that a form has instead of slugs. It reads
// names only if a value cannot be a slug.
func (d *dashboard) slugsOfNames(ctx context.Context, v *visit, f *form) {
	f.replaceNames(planNameFields, func() map[string]string { return d.planNames(ctx, v.actor()) })
	f.replaceNames(ruleNameFields, func() map[string]string { return d.ruleNames(ctx, v.actor().TenantID()) })
}

func (f *form) replaceNames(fields []string, read func() map[string]string) {
	var slugs map[string]string // made once: a form has many values, and a tenant many names
	for _, field := range fields {
		for i, value := range f.values[field] {
			if value = strings.TrimSpace(value); slugText.MatchString(value) {
				continue
			}
			if slugs == nil {
				slugs = slugsByName(read())
			}
			if slug, found := slugs[folded(value)]; found {
				f.values[field][i] = slug
			}
		}
	}
}

// slugsByName returns slugs by folded names. Of several with the same name it has the first one.
func slugsByName(names map[string]string) map[string]string {
	slugs := make(map[string]string, len(names))
	for slug, name := range names {
		name = folded(name)
		if other, twice := slugs[name]; !twice || slug < other {
			slugs[name] = slug
		}
	}
	return slugs
}

// folded returns a text that is the same for texts that strings.EqualFold calls equal.
func folded(text string) string {
	return strings.Map(func(c rune) rune {
		least := c
		for other := unicode.SimpleFold(c); other != c; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
		return least
	}, text)
}
