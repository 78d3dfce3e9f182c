// Package core runs a provider in this process as Terraform does, without Terraform: it evaluates
// configurations, refreshes, plans and applies over the provider protocol, and verifies what
// Terraform requires of the answers. It is for tests, which run the same scenarios with Terraform
// where that is installed. It knows no modules, no functions, no count and no for_each, and applies
// one resource after the other.
package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// An Action is what a plan or an apply does with a resource.
type Action string

// The actions. Resources that do not change have none.
const (
	Create  Action = "create"
	Update  Action = "update"
	Delete  Action = "delete"
	Replace Action = "replace"
)

// A Core is one workspace with its state.
type Core struct {
	server   tfprotov6.ProviderServer
	schemas  *tfprotov6.GetProviderSchemaResponse
	state    map[string]instance // by address, such as weir_rule.api
	order    []string            // in which the resources were created
	Warnings []string            // of the last operation
	between  func()
}

// BeforeApply calls f once, after the next resource was planned and before it is applied.
func (c *Core) BeforeApply(f func()) { c.between = f }

type instance struct {
	typeName string
	value    cty.Value
	private  []byte
}

// New returns an empty workspace.
func New(server tfprotov6.ProviderServer) (*Core, error) {
	schemas, err := server.GetProviderSchema(context.Background(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		return nil, err
	}
	c := &Core{server: server, schemas: schemas, state: map[string]instance{}}
	return c, c.diagnose(schemas.Diagnostics)
}

// Plan refreshes the state, and returns what an apply would do.
func (c *Core) Plan(config string) (map[string]Action, error) { return c.run(config, false) }

// Apply changes the resources.
func (c *Core) Apply(config string) (map[string]Action, error) { return c.run(config, true) }

// Value returns the state of a resource, and whether there is one.
func (c *Core) Value(address string) (cty.Value, bool) {
	i, found := c.state[address]
	return i.value, found
}

// diagnose returns the errors, and keeps the warnings.
func (c *Core) diagnose(list []*tfprotov6.Diagnostic) error {
	var errs []error
	for _, d := range list {
		text := d.Summary + ": " + d.Detail
		if d.Attribute != nil {
			text = attributeText(d.Attribute) + ": " + text
		}
		if d.Severity == tfprotov6.DiagnosticSeverityWarning {
			c.Warnings = append(c.Warnings, text)
		} else {
			errs = append(errs, errors.New(text))
		}
	}
	return errors.Join(errs...)
}

func attributeText(p *tftypes.AttributePath) string {
	text := ""
	for _, step := range p.Steps() {
		switch step := step.(type) {
		case tftypes.AttributeName:
			text += "." + string(step)
		case tftypes.ElementKeyString:
			text += fmt.Sprintf("[%q]", string(step))
		case tftypes.ElementKeyInt:
			text += fmt.Sprintf("[%d]", step)
		}
	}
	return strings.TrimPrefix(text, ".")
}

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

func (c *Core) run(config string, apply bool) (map[string]Action, error) {
	c.Warnings = nil
	providerBody, blocks, err := parse(config)
	if err == nil {
		blocks, err = inOrder(blocks)
	}
	if err == nil {
		err = c.configure(providerBody)
	}
	if err != nil {
		return nil, err
	}
	actions := map[string]Action{}
	known := map[string]cty.Value{}
	wanted := map[string]bool{}
	var opened []func() error
	var errs []error
	for _, b := range blocks {
		wanted[b.address] = true
		value, action, closer, err := c.visit(b, known, apply)
		if closer != nil {
			opened = append(opened, closer)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.address, err))
			break
		}
		known[b.address] = value
		if action != "" {
			actions[b.address] = action
		}
	}
	if len(errs) == 0 {
		errs = append(errs, c.deleteOthers(wanted, actions, apply))
	}
	for _, closer := range slices.Backward(opened) {
		errs = append(errs, closer())
	}
	return actions, errors.Join(errs...)
}

func (c *Core) configure(body *hclsyntax.Body) error {
	if body == nil {
		body = &hclsyntax.Body{}
	}
	config, err := c.evaluate(body, c.schemas.Provider, nil)
	if err != nil {
		return err
	}
	encoded, err := encode(config)
	if err != nil {
		return err
	}
	resp, err := c.server.ConfigureProvider(context.Background(), &tfprotov6.ConfigureProviderRequest{TerraformVersion: "1.11.0", Config: encoded})
	if err != nil {
		return err
	}
	return c.diagnose(resp.Diagnostics)
}

func (c *Core) visit(b block, known map[string]cty.Value, apply bool) (cty.Value, Action, func() error, error) {
	schemas := map[string]map[string]*tfprotov6.Schema{
		"resource": c.schemas.ResourceSchemas, "data": c.schemas.DataSourceSchemas, "ephemeral": c.schemas.EphemeralResourceSchemas,
	}
	schema := schemas[b.kind][b.typeName]
	if schema == nil {
		return cty.NilVal, "", nil, fmt.Errorf("the provider has no %s %s", b.kind, b.typeName)
	}
	config, err := c.evaluate(b.body, schema, known)
	if err != nil {
		return cty.NilVal, "", nil, err
	}
	switch b.kind {
	case "data":
		value, err := c.readData(b.typeName, schema, config)
		return value, "", nil, err
	case "ephemeral":
		value, closer, err := c.open(b.typeName, schema, config)
		return value, "", closer, err
	}
	value, action, err := c.resource(b, schema, config, apply)
	return value, action, nil, err
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

func (c *Core) readData(typeName string, schema *tfprotov6.Schema, config cty.Value) (cty.Value, error) {
	encoded, err := encode(config)
	if err != nil {
		return cty.NilVal, err
	}
	ctx := context.Background()
	validated, err := c.server.ValidateDataResourceConfig(ctx, &tfprotov6.ValidateDataResourceConfigRequest{TypeName: typeName, Config: encoded})
	if err == nil {
		err = c.diagnose(validated.Diagnostics)
	}
	if err != nil {
		return cty.NilVal, err
	}
	if !config.IsWhollyKnown() {
		return cty.UnknownVal(config.Type()), nil // Terraform reads it during the apply
	}
	resp, err := c.server.ReadDataSource(ctx, &tfprotov6.ReadDataSourceRequest{TypeName: typeName, Config: encoded})
	if err == nil {
		err = c.diagnose(resp.Diagnostics)
	}
	if err != nil {
		return cty.NilVal, err
	}
	return decode(resp.State, schema)
}

func (c *Core) open(typeName string, schema *tfprotov6.Schema, config cty.Value) (cty.Value, func() error, error) {
	encoded, err := encode(config)
	if err != nil {
		return cty.NilVal, nil, err
	}
	ctx := context.Background()
	resp, err := c.server.OpenEphemeralResource(ctx, &tfprotov6.OpenEphemeralResourceRequest{TypeName: typeName, Config: encoded})
	if err == nil {
		err = c.diagnose(resp.Diagnostics)
	}
	if err != nil {
		return cty.NilVal, nil, err
	}
	value, err := decode(resp.Result, schema)
	return value, func() error {
		closed, err := c.server.CloseEphemeralResource(ctx, &tfprotov6.CloseEphemeralResourceRequest{TypeName: typeName, Private: resp.Private})
		if err != nil {
			return err
		}
		return c.diagnose(closed.Diagnostics)
	}, err
}

// Import reads an object into the state.
func (c *Core) Import(config, address, id string) error {
	c.Warnings = nil
	body, _, err := parse(config)
	if err == nil {
		err = c.configure(body)
	}
	if err != nil {
		return err
	}
	if _, exists := c.state[address]; exists {
		return fmt.Errorf("%s is in the state already", address)
	}
	typeName, _, _ := strings.Cut(address, ".")
	resp, err := c.server.ImportResourceState(context.Background(), &tfprotov6.ImportResourceStateRequest{TypeName: typeName, ID: id})
	if err == nil {
		err = c.diagnose(resp.Diagnostics)
	}
	if err != nil {
		return err
	}
	schema := c.schemas.ResourceSchemas[typeName]
	value, err := decode(resp.ImportedResources[0].State, schema)
	if err != nil {
		return err
	}
	i, err := c.refresh(instance{typeName, value, resp.ImportedResources[0].Private}, schema)
	if err == nil && i.value.IsNull() {
		err = errors.New("the imported object does not exist")
	}
	if err == nil {
		c.put(address, i)
	}
	return err
}

func (c *Core) put(address string, i instance) {
	if _, exists := c.state[address]; !exists {
		c.order = append(c.order, address)
	}
	c.state[address] = i
}

func (c *Core) drop(address string) {
	delete(c.state, address)
	c.order = slices.DeleteFunc(c.order, func(a string) bool { return a == address })
}

// refresh reads a resource. Its value is null if it does not exist any more.
func (c *Core) refresh(i instance, schema *tfprotov6.Schema) (instance, error) {
	encoded, err := encode(i.value)
	if err != nil {
		return i, err
	}
	resp, err := c.server.ReadResource(context.Background(), &tfprotov6.ReadResourceRequest{TypeName: i.typeName, CurrentState: encoded, Private: i.private})
	if err == nil {
		err = c.diagnose(resp.Diagnostics)
	}
	if err != nil {
		return i, err
	}
	value, err := decode(resp.NewState, schema)
	if err == nil && !value.IsWhollyKnown() {
		err = errors.New("the refreshed state has unknown values")
	}
	return instance{i.typeName, value, resp.Private}, err
}

func (c *Core) resource(b block, schema *tfprotov6.Schema, config cty.Value, apply bool) (cty.Value, Action, error) {
	ctx := context.Background()
	encoded, err := encode(config)
	if err != nil {
		return cty.NilVal, "", err
	}
	validated, err := c.server.ValidateResourceConfig(ctx, &tfprotov6.ValidateResourceConfigRequest{
		TypeName: b.typeName, Config: encoded, ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true},
	})
	if err == nil {
		err = c.diagnose(validated.Diagnostics)
	}
	if err != nil {
		return cty.NilVal, "", err
	}
	prior := instance{typeName: b.typeName, value: cty.NullVal(config.Type())}
	if i, exists := c.state[b.address]; exists {
		if prior, err = c.refresh(i, schema); err != nil {
			return cty.NilVal, "", err
		}
		if prior.value.IsNull() {
			c.drop(b.address)
		} else {
			c.put(b.address, prior)
		}
	}
	planned, replace, err := c.plan(schema, prior, config)
	if err != nil {
		return cty.NilVal, "", err
	}
	action := Update
	switch {
	case prior.value.IsNull():
		action = Create
	case planned.value.RawEquals(prior.value):
		return planned.value, "", nil
	case replace:
		action = Replace
		prior = instance{typeName: b.typeName, value: cty.NullVal(config.Type())}
		if planned, _, err = c.plan(schema, prior, config); err != nil {
			return cty.NilVal, "", err
		}
	}
	if !apply {
		return planned.value, action, nil
	}
	if f := c.between; f != nil {
		c.between = nil
		f()
	}
	if action == Replace {
		if err := c.destroy(b.address); err != nil {
			return cty.NilVal, "", err
		}
	}
	applied, err := c.apply(schema, prior, planned, config)
	if applied.value != cty.NilVal && !applied.value.IsNull() {
		c.put(b.address, applied)
	}
	return applied.value, action, err
}

// plan plans a change, and verifies the plan.
func (c *Core) plan(schema *tfprotov6.Schema, prior instance, config cty.Value) (planned instance, replace bool, err error) {
	priorEncoded, err := encode(prior.value)
	configEncoded, errConfig := encode(config)
	proposed, errProposed := encode(propose(schema, prior.value, config))
	if err = errors.Join(err, errConfig, errProposed); err != nil {
		return planned, false, err
	}
	resp, err := c.server.PlanResourceChange(context.Background(), &tfprotov6.PlanResourceChangeRequest{
		TypeName: prior.typeName, PriorState: priorEncoded, ProposedNewState: proposed, Config: configEncoded, PriorPrivate: prior.private,
	})
	if err == nil {
		err = c.diagnose(resp.Diagnostics)
	}
	if err != nil {
		return planned, false, err
	}
	value, err := decode(resp.PlannedState, schema)
	if err == nil {
		err = validPlan(schema, prior.value, config, value)
	}
	return instance{prior.typeName, value, resp.PlannedPrivate}, len(resp.RequiresReplace) > 0, err
}

// propose merges the configuration and the prior state as Terraform does, at the top level.
func propose(schema *tfprotov6.Schema, prior, config cty.Value) cty.Value {
	values := config.AsValueMap()
	for _, a := range schema.Block.Attributes {
		switch {
		case a.WriteOnly:
			values[a.Name] = cty.NullVal(values[a.Name].Type())
		case a.Computed && values[a.Name].IsNull() && prior.IsNull():
			values[a.Name] = cty.UnknownVal(values[a.Name].Type())
		case a.Computed && values[a.Name].IsNull():
			values[a.Name] = prior.GetAttr(a.Name)
		}
	}
	return cty.ObjectVal(values)
}

// validPlan verifies that a plan has what is configured, or the prior value, and for attributes
// that are not configured nothing unless they are computed.
func validPlan(schema *tfprotov6.Schema, prior, config, planned cty.Value) error {
	for _, a := range schema.Block.Attributes {
		p, q := planned.GetAttr(a.Name), config.GetAttr(a.Name)
		unchanged := !prior.IsNull() && p.RawEquals(prior.GetAttr(a.Name)) && !p.IsNull()
		switch {
		case a.WriteOnly:
			if !p.IsNull() {
				return fmt.Errorf("the plan has a value for the write-only attribute %s", a.Name)
			}
		case unchanged:
		case q.IsNull() && a.Computed:
		case a.NestedType != nil && !q.IsNull():
			if err := compatible(q, p, true); err != nil {
				return fmt.Errorf("invalid plan for %s: %w", a.Name, err)
			}
		case !p.RawEquals(q):
			return fmt.Errorf("invalid plan for %s: %#v, configured is %#v", a.Name, p, q)
		}
	}
	return nil
}

// compatible verifies that the result has all values that were planned. Unknown ones may become
// anything, and with nulls null ones, too.
func compatible(planned, result cty.Value, nulls bool) error {
	switch {
	case !planned.IsKnown(), nulls && planned.IsNull():
		return nil
	case planned.IsNull() || result.IsNull() || !result.IsKnown() || !planned.CanIterateElements() || planned.Type().IsSetType():
		if !planned.RawEquals(result) {
			return fmt.Errorf("%#v instead of %#v", result, planned)
		}
		return nil
	case planned.LengthInt() != result.LengthInt():
		return fmt.Errorf("%d instead of %d elements", result.LengthInt(), planned.LengthInt())
	}
	for it := planned.ElementIterator(); it.Next(); {
		key, p := it.Element()
		var r cty.Value
		switch {
		case planned.Type().IsObjectType():
			r = result.GetAttr(key.AsString())
		case result.HasIndex(key).False():
			return fmt.Errorf("%#v is missing", key)
		default:
			r = result.Index(key)
		}
		if err := compatible(p, r, nulls); err != nil {
			return fmt.Errorf("%#v: %w", key, err)
		}
	}
	return nil
}

func (c *Core) apply(schema *tfprotov6.Schema, prior, planned instance, config cty.Value) (instance, error) {
	priorEncoded, err := encode(prior.value)
	plannedEncoded, errPlanned := encode(planned.value)
	configEncoded, errConfig := encode(config)
	if err = errors.Join(err, errPlanned, errConfig); err != nil {
		return instance{}, err
	}
	resp, err := c.server.ApplyResourceChange(context.Background(), &tfprotov6.ApplyResourceChangeRequest{
		TypeName: prior.typeName, PriorState: priorEncoded, PlannedState: plannedEncoded, Config: configEncoded, PlannedPrivate: planned.private,
	})
	if err != nil {
		return instance{}, err
	}
	value, err := decode(resp.NewState, schema)
	if err != nil {
		return instance{}, err
	}
	result := instance{prior.typeName, value, resp.Private}
	if err := c.diagnose(resp.Diagnostics); err != nil {
		return result, err
	}
	if !value.IsWhollyKnown() {
		return result, errors.New("the provider produced an invalid result: it has unknown values")
	}
	if err := compatible(planned.value, value, false); err != nil {
		return result, fmt.Errorf("the provider produced an inconsistent result: %w", err)
	}
	return result, nil
}

// deleteOthers deletes the resources that the configuration does not have, the newest first.
func (c *Core) deleteOthers(wanted map[string]bool, actions map[string]Action, apply bool) error {
	for _, address := range slices.Backward(slices.Clone(c.order)) {
		if wanted[address] {
			continue
		}
		i := c.state[address]
		refreshed, err := c.refresh(i, c.schemas.ResourceSchemas[i.typeName])
		if err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
		if refreshed.value.IsNull() {
			c.drop(address)
			continue
		}
		c.put(address, refreshed)
		actions[address] = Delete
		if !apply {
			continue
		}
		if err := c.destroy(address); err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
	}
	return nil
}

func (c *Core) destroy(address string) error {
	i := c.state[address]
	prior, err := encode(i.value)
	null, errNull := encode(cty.NullVal(i.value.Type()))
	if err = errors.Join(err, errNull); err != nil {
		return err
	}
	ctx := context.Background()
	planned, err := c.server.PlanResourceChange(ctx, &tfprotov6.PlanResourceChangeRequest{
		TypeName: i.typeName, PriorState: prior, ProposedNewState: null, Config: null, PriorPrivate: i.private,
	})
	if err == nil {
		err = c.diagnose(planned.Diagnostics)
	}
	if err != nil {
		return err
	}
	resp, err := c.server.ApplyResourceChange(ctx, &tfprotov6.ApplyResourceChangeRequest{
		TypeName: i.typeName, PriorState: prior, PlannedState: null, Config: null, PlannedPrivate: planned.PlannedPrivate,
	})
	if err == nil {
		err = c.diagnose(resp.Diagnostics)
	}
	if err == nil {
		c.drop(address)
	}
	return err
}

// typeOf returns the type of a block's values.
func typeOf(schema *tfprotov6.Schema) (cty.Type, error) {
	encoded, err := schema.ValueType().MarshalJSON()
	if err != nil {
		return cty.NilType, err
	}
	return ctyjson.UnmarshalType(encoded)
}

func encode(v cty.Value) (*tfprotov6.DynamicValue, error) {
	encoded, err := msgpack.Marshal(v, v.Type())
	return &tfprotov6.DynamicValue{MsgPack: encoded}, err
}

func decode(v *tfprotov6.DynamicValue, schema *tfprotov6.Schema) (cty.Value, error) {
	t, err := typeOf(schema)
	if err != nil {
		return cty.NilVal, err
	}
	return msgpack.Unmarshal(v.MsgPack, t)
}

// Addresses returns the addresses of all resources.
func (c *Core) Addresses() []string { return slices.Sorted(maps.Keys(c.state)) }
