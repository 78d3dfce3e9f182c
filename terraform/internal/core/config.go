package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// A block is one block of a configuration.
type block struct {
	address  string
	typeName string
	kind     string // resource, data or ephemeral
	body     *hclsyntax.Body
	needs    []string // addresses
}

func parse(config string) (provider *hclsyntax.Body, blocks []block, err error) {
	file, diags := hclsyntax.ParseConfig([]byte(config), "main.tf", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, nil, diags
	}
	for _, b := range file.Body.(*hclsyntax.Body).Blocks {
		switch b.Type {
		case "provider":
			provider = b.Body
		case "resource", "data", "ephemeral":
			address := b.Labels[0] + "." + b.Labels[1]
			if b.Type != "resource" {
				address = b.Type + "." + address
			}
			blocks = append(blocks, block{address, b.Labels[0], b.Type, b.Body, needs(b.Body)})
		}
	}
	return provider, blocks, nil
}

// needs returns the addresses that the attributes of a block refer to.
func needs(body *hclsyntax.Body) (out []string) {
	for _, a := range body.Attributes {
		for _, v := range a.Expr.Variables() {
			var names []string
			for _, step := range v {
				switch step := step.(type) {
				case hcl.TraverseRoot:
					names = append(names, step.Name)
				case hcl.TraverseAttr:
					names = append(names, step.Name)
				}
			}
			parts := 2
			if names[0] == "data" || names[0] == "ephemeral" {
				parts = 3
			}
			if len(names) >= parts {
				out = append(out, strings.Join(names[:parts], "."))
			}
		}
	}
	return out
}

// inOrder sorts blocks so that each comes after those it refers to.
func inOrder(blocks []block) ([]block, error) {
	var out []block
	done := map[string]bool{}
	for len(out) < len(blocks) {
		before := len(out)
		for _, b := range blocks {
			ready := !done[b.address] && !slices.ContainsFunc(b.needs, func(n string) bool { return !done[n] })
			if ready {
				done[b.address] = true
				out = append(out, b)
			}
		}
		if len(out) == before {
			return nil, fmt.Errorf("the configuration refers to something that it does not have, or to itself")
		}
	}
	return out, nil
}

// evaluate returns the values of a block. Attributes that it does not have are null.
func (c *Core) evaluate(body *hclsyntax.Body, schema *tfprotov6.Schema, known map[string]cty.Value) (cty.Value, error) {
	t, err := typeOf(schema)
	if err != nil {
		return cty.NilVal, err
	}
	tree := map[string]map[string]cty.Value{}
	dataTree := map[string]map[string]map[string]cty.Value{"data": {}, "ephemeral": {}}
	for address, value := range known {
		parts := strings.Split(address, ".")
		in := tree
		if len(parts) == 3 {
			in = dataTree[parts[0]]
		}
		last := len(parts) - 1
		if in[parts[last-1]] == nil {
			in[parts[last-1]] = map[string]cty.Value{}
		}
		in[parts[last-1]][parts[last]] = value
	}
	variables := map[string]cty.Value{}
	for typeName, instances := range tree {
		variables[typeName] = cty.ObjectVal(instances)
	}
	for kind, types := range dataTree {
		byType := map[string]cty.Value{}
		for typeName, instances := range types {
			byType[typeName] = cty.ObjectVal(instances)
		}
		variables[kind] = cty.ObjectVal(byType)
	}
	values := map[string]cty.Value{}
	for name, at := range t.AttributeTypes() {
		values[name] = cty.NullVal(at)
	}
	for name, a := range body.Attributes {
		at, exists := t.AttributeTypes()[name]
		if !exists {
			return cty.NilVal, fmt.Errorf("unsupported argument %q", name)
		}
		v, diags := a.Expr.Value(&hcl.EvalContext{Variables: variables})
		if diags.HasErrors() {
			return cty.NilVal, diags
		}
		converted, err := convertTo(v, at)
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s: %w", name, err)
		}
		values[name] = converted
	}
	for _, a := range schema.Block.Attributes {
		if a.Required && values[a.Name].IsNull() {
			return cty.NilVal, fmt.Errorf("missing required argument %q", a.Name)
		}
	}
	return cty.ObjectVal(values), nil
}

// convertTo converts a value to the type of an attribute. Members of objects may be left out.
func convertTo(v cty.Value, t cty.Type) (cty.Value, error) {
	if !v.IsKnown() || v.IsNull() {
		return convert.Convert(v, t)
	}
	switch {
	case t.IsObjectType() && v.Type().IsObjectType():
		members := map[string]cty.Value{}
		for name := range v.Type().AttributeTypes() {
			if !t.HasAttribute(name) {
				return cty.NilVal, fmt.Errorf("unsupported attribute %q", name)
			}
		}
		for name, mt := range t.AttributeTypes() {
			members[name] = cty.NullVal(mt)
			if v.Type().HasAttribute(name) {
				member, err := convertTo(v.GetAttr(name), mt)
				if err != nil {
					return cty.NilVal, fmt.Errorf("%s: %w", name, err)
				}
				members[name] = member
			}
		}
		return cty.ObjectVal(members), nil
	case t.IsMapType() && t.ElementType().IsObjectType() && v.CanIterateElements():
		members := map[string]cty.Value{}
		for it := v.ElementIterator(); it.Next(); {
			key, member := it.Element()
			converted, err := convertTo(member, t.ElementType())
			if err != nil {
				return cty.NilVal, err
			}
			members[key.AsString()] = converted
		}
		if len(members) == 0 {
			return cty.MapValEmpty(t.ElementType()), nil
		}
		return cty.MapVal(members), nil
	case t.IsListType() && t.ElementType().IsObjectType() && v.CanIterateElements():
		var members []cty.Value
		for it := v.ElementIterator(); it.Next(); {
			_, member := it.Element()
			converted, err := convertTo(member, t.ElementType())
			if err != nil {
				return cty.NilVal, err
			}
			members = append(members, converted)
		}
		if len(members) == 0 {
			return cty.ListValEmpty(t.ElementType()), nil
		}
		return cty.ListVal(members), nil
	}
	return convert.Convert(v, t)
}
