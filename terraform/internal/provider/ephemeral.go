package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"weir/terraform/internal/client"
)

// An ephemeralKey is an API key that exists while Terraform runs. It is in no plan and in no state.
type ephemeralKey struct{ client *client.Client }

var (
	_ ephemeral.EphemeralResourceWithConfigure = (*ephemeralKey)(nil)
	_ ephemeral.EphemeralResourceWithClose     = (*ephemeralKey)(nil)
)

type ephemeralKeyModel struct {
	Name      types.String `tfsdk:"name"`
	Scopes    types.Set    `tfsdk:"scopes"`
	Lifetime  types.String `tfsdk:"lifetime"`
	ID        types.String `tfsdk:"id"`
	Secret    types.String `tfsdk:"secret"`
	ExpiresAt types.String `tfsdk:"expires_at"`
}

const ephemeralKeyAbout = "An API key that exists only while Terraform runs, and is stored neither in the plan nor in the state. " +
	"Terraform revokes it at the end of the run. If the run is killed, the key expires by itself. Requires Terraform 1.10 or newer."

// Metadata names the ephemeral resource.
func (e *ephemeralKey) Metadata(_ context.Context, req ephemeral.MetadataRequest, resp *ephemeral.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_key"
}

// Schema describes the attributes.
func (e *ephemeralKey) Schema(_ context.Context, _ ephemeral.SchemaRequest, resp *ephemeral.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: ephemeralKeyAbout,
		Attributes: map[string]schema.Attribute{
			"name":       schema.StringAttribute{Optional: true, MarkdownDescription: "Up to 200 characters. Default `terraform`."},
			"scopes":     schema.SetAttribute{Required: true, ElementType: types.StringType, MarkdownDescription: "Any of `check`, `read`, `write` and `manage`; at most the scopes of the provider's key."},
			"lifetime":   schema.StringAttribute{Optional: true, MarkdownDescription: "After this time the key expires if it has not been revoked: a duration such as `30m`. Default `1h`."},
			"id":         schema.StringAttribute{Computed: true, MarkdownDescription: "Id of the key."},
			"secret":     schema.StringAttribute{Computed: true, Sensitive: true, MarkdownDescription: "The key itself."},
			"expires_at": schema.StringAttribute{Computed: true, MarkdownDescription: "When the key expires, RFC 3339."},
		},
	}
}

// Configure gets the client from the provider.
func (e *ephemeralKey) Configure(_ context.Context, req ephemeral.ConfigureRequest, _ *ephemeral.ConfigureResponse) {
	e.client, _ = req.ProviderData.(*client.Client)
}

const keyID = "id"

// Open creates the key.
func (e *ephemeralKey) Open(ctx context.Context, req ephemeral.OpenRequest, resp *ephemeral.OpenResponse) {
	var m ephemeralKeyModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	var scopes []string
	resp.Diagnostics.Append(m.Scopes.ElementsAs(ctx, &scopes, false)...)
	if resp.Diagnostics.HasError() || !ready(e.client, &resp.Diagnostics) {
		return
	}
	lifetime := time.Hour
	if text := m.Lifetime.ValueString(); text != "" {
		parsed, err := time.ParseDuration(text)
		if err != nil || parsed <= 0 {
			resp.Diagnostics.AddAttributeError(path.Root("lifetime"), "Invalid value", fmt.Sprintf("%q must be a duration such as 30m.", text))
			return
		}
		lifetime = parsed
	}
	name := m.Name.ValueString()
	if name == "" {
		name = "terraform"
	}
	keys := &object{kind: byName()["key"], client: e.client}
	answer, err := keys.post(ctx, map[string]any{"name": name, "scopes": scopes, "expires_at": time.Now().Add(lifetime).UTC().Format(time.RFC3339)})
	if err != nil {
		addError(&resp.Diagnostics, keys.kind.attributes, "Cannot create key "+name, err)
		return
	}
	text := func(field string) types.String {
		value, _ := answer.Body[field].(string)
		return types.StringValue(value)
	}
	m.ID, m.Secret, m.ExpiresAt = text("id"), text("secret"), text("expires_at")
	encoded, err := json.Marshal(m.ID.ValueString())
	if err == nil {
		resp.Diagnostics.Append(resp.Private.SetKey(ctx, keyID, encoded)...)
	}
	resp.Diagnostics.Append(resp.Result.Set(ctx, &m)...)
}

// Close revokes the key.
func (e *ephemeralKey) Close(ctx context.Context, req ephemeral.CloseRequest, resp *ephemeral.CloseResponse) {
	stored, diags := req.Private.GetKey(ctx, keyID)
	resp.Diagnostics.Append(diags...)
	var id string
	if json.Unmarshal(stored, &id) != nil || !ready(e.client, &resp.Diagnostics) {
		return
	}
	_, err := e.client.Do(ctx, client.Call{Method: http.MethodDelete, Path: byName()["key"].pathOf(map[string]any{"id": id})})
	if err != nil && !client.Is(err, http.StatusNotFound, "") {
		addError(&resp.Diagnostics, nil, "Cannot revoke key "+id, err)
	}
}
