package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/zclconf/go-cty/cty"
)

type instance struct {
	typeName string
	value    cty.Value
	private  []byte
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
