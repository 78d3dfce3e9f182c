package provider

import (
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	datasource "github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	resource "github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
)

// attrType returns the framework's type of an attribute.
func (a *attribute) attrType() attr.Type {
	switch a.form {
	case integerForm, decimalForm:
		return types.NumberType
	case booleanForm:
		return types.BoolType
	case listForm:
		return types.ListType{ElemType: types.StringType}
	case setForm:
		return types.SetType{ElemType: types.StringType}
	case textMapForm:
		return types.MapType{ElemType: types.StringType}
	case objectForm:
		return attrObject(a.fields)
	case objectListForm:
		return types.ListType{ElemType: attrObject(a.fields)}
	case objectMapForm:
		return types.MapType{ElemType: attrObject(a.fields)}
	}
	return types.StringType
}

func attrObject(fields []*attribute) basetypes.ObjectType {
	out := map[string]attr.Type{}
	for _, f := range fields {
		out[f.name] = f.attrType()
	}
	return types.ObjectType{AttrTypes: out}
}

// markdown is the description of an attribute, with its default.
func (a *attribute) markdown() string {
	doc := strings.TrimSuffix(a.doc, ".")
	var more []string
	if len(a.choices) > 0 && !describesAll(doc, a.choices) {
		names := make([]string, len(a.choices))
		for i, c := range a.choices {
			names[i] = fmt.Sprintf("`%v`", c)
		}
		more = append(more, "One of "+strings.Join(names, ", "))
	}
	if a.optional && a.hasFallback && a.fallback != nil && !strings.Contains(strings.ToLower(doc), "default") {
		more = append(more, fmt.Sprintf("Default `%s`", defaultText(a.fallback)))
	}
	if a.immutable {
		more = append(more, "A change replaces the object")
	}
	if a.writeOnly {
		more = append(more, "Write-only")
	}
	if doc != "" {
		more = append([]string{doc}, more...)
	}
	if len(more) == 0 {
		return ""
	}
	return strings.Join(more, ". ") + "."
}

func describesAll(doc string, choices []any) bool {
	for _, c := range choices {
		if !strings.Contains(doc, fmt.Sprint(c)) {
			return false
		}
	}
	return true
}

func defaultText(x any) string {
	switch x := x.(type) {
	case []any:
		texts := make([]string, len(x))
		for i := range x {
			texts[i] = fmt.Sprintf("%q", x[i])
		}
		return "[" + strings.Join(texts, ", ") + "]"
	case map[string]any:
		return "{}"
	case string:
		return fmt.Sprintf("%q", x)
	}
	return fmt.Sprint(x)
}

func resourceAttributes(list []*attribute) map[string]resource.Attribute {
	out := map[string]resource.Attribute{}
	for _, a := range list {
		out[a.name] = a.resource()
	}
	return out
}

func (a *attribute) resource() resource.Attribute {
	doc, r, o, c, s, w := a.markdown(), a.required, a.optional, a.computed, a.sensitive, a.writeOnly
	switch a.form {
	case integerForm, decimalForm:
		return resource.NumberAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w}
	case booleanForm:
		return resource.BoolAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w}
	case listForm:
		return resource.ListAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w, ElementType: types.StringType}
	case setForm:
		return resource.SetAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, ElementType: types.StringType}
	case textMapForm:
		return resource.MapAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w, ElementType: types.StringType}
	case objectForm:
		return resource.SingleNestedAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w, Attributes: resourceAttributes(a.fields)}
	case objectListForm:
		return resource.ListNestedAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w,
			NestedObject: resource.NestedAttributeObject{Attributes: resourceAttributes(a.fields)}}
	case objectMapForm:
		return resource.MapNestedAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w,
			NestedObject: resource.NestedAttributeObject{Attributes: resourceAttributes(a.fields)}}
	}
	return resource.StringAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c, Sensitive: s, WriteOnly: w}
}

// dataSource returns the attribute of a data source: required if the caller names the object by it,
// optional for a filter, otherwise read from the server.
func (a *attribute) dataSource() datasource.Attribute {
	r, o := a.required, a.optional
	c := !r && !o
	doc := a.markdown()
	if a.form == textForm {
		return datasource.StringAttribute{MarkdownDescription: doc, Required: r, Optional: o, Computed: c}
	}
	return a.computedDataSource()
}

func (a *attribute) computedDataSource() datasource.Attribute {
	doc := a.markdown()
	switch a.form {
	case integerForm, decimalForm:
		return datasource.NumberAttribute{MarkdownDescription: doc, Computed: true}
	case booleanForm:
		return datasource.BoolAttribute{MarkdownDescription: doc, Computed: true}
	case listForm:
		return datasource.ListAttribute{MarkdownDescription: doc, Computed: true, ElementType: types.StringType}
	case textMapForm:
		return datasource.MapAttribute{MarkdownDescription: doc, Computed: true, ElementType: types.StringType}
	case objectForm:
		return datasource.SingleNestedAttribute{MarkdownDescription: doc, Computed: true, Attributes: computedDataSources(a.fields)}
	case objectListForm:
		return datasource.ListNestedAttribute{MarkdownDescription: doc, Computed: true, NestedObject: datasource.NestedAttributeObject{Attributes: computedDataSources(a.fields)}}
	case objectMapForm:
		return datasource.MapNestedAttribute{MarkdownDescription: doc, Computed: true, NestedObject: datasource.NestedAttributeObject{Attributes: computedDataSources(a.fields)}}
	}
	return datasource.StringAttribute{MarkdownDescription: doc, Computed: true}
}

func computedDataSources(list []*attribute) map[string]datasource.Attribute {
	out := map[string]datasource.Attribute{}
	for _, a := range list {
		out[a.name] = a.computedDataSource()
	}
	return out
}

// pathOfPointer returns the path of the attribute that a JSON pointer of the API names, as far as
// there is one. found is false if not even its first part is an attribute.
func pathOfPointer(list []*attribute, pointer string) (p path.Path, found bool) {
	if name, isPath := strings.CutPrefix(pointer, "path:"); isPath {
		for _, candidate := range []string{name, "slug", "subject"} {
			if attributeNamed(list, candidate) != nil {
				return path.Root(candidate), true
			}
		}
		return p, false
	}
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	a := attributeNamed(list, terraformName(unescape(parts[0])))
	if a == nil || !strings.HasPrefix(pointer, "/") {
		return p, false
	}
	p, parts = path.Root(a.name), parts[1:]
	for len(parts) > 0 {
		step := unescape(parts[0])
		switch a.form {
		case listForm, objectListForm:
			var index int
			if _, err := fmt.Sscanf(step, "%d", &index); err != nil {
				return p, true
			}
			p = p.AtListIndex(index)
		case textMapForm, objectMapForm:
			p = p.AtMapKey(step)
		case objectForm:
			if a = a.field(step); a == nil {
				return p, true
			}
			p, parts = p.AtName(a.name), parts[1:]
			continue
		default:
			return p, true
		}
		parts = parts[1:]
		if a.fields == nil || len(parts) == 0 {
			return p, true
		}
		if a = a.field(unescape(parts[0])); a == nil {
			return p, true
		}
		p, parts = p.AtName(a.name), parts[1:]
	}
	return p, true
}

func unescape(part string) string {
	return strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
}
