package core

import (
	"context"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"
)

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
