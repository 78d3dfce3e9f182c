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

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"github.com/zclconf/go-cty/cty"
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

// Addresses returns the addresses of all resources.
func (c *Core) Addresses() []string { return slices.Sorted(maps.Keys(c.state)) }
