// Package provider is the Terraform provider of Weir.
//
// Resources and data sources are instances of two types, object and source. What distinguishes them
// is in the table kinds; their attributes are derived from the OpenAPI document of the API, of
// which schemas.json is an extract. So a field is described in one place, the API.
package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"weir/terraform/internal/client"
)

// typeName begins the names of all resources.
const typeName = "weir"

// Weir is the provider.
type Weir struct {
	version string
	getenv  func(string) string

	// For tests; nil: the defaults of the client.
	transport http.RoundTripper
	pause     func(context.Context, time.Duration) error
}

var _ provider.ProviderWithEphemeralResources = (*Weir)(nil)

// New returns the provider.
func New(version string) *Weir { return &Weir{version: version, getenv: os.Getenv} }

// Metadata names the provider.
func (p *Weir) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName, resp.Version = typeName, p.version
}

type providerModel struct {
	URL     types.String `tfsdk:"url"`
	Key     types.String `tfsdk:"key"`
	Timeout types.String `tfsdk:"timeout"`
}

// Schema describes the configuration.
func (p *Weir) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Manages the configuration of a tenant of Weir, a rate-limit service.",
		Attributes: map[string]schema.Attribute{
			"url": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Address of the server, such as `https://weir.example.com`. Default: the environment variable `WEIR_URL`, or the server of `weir login`.",
			},
			"key": schema.StringAttribute{
				Optional: true, Sensitive: true,
				MarkdownDescription: "API key of the tenant, with the scopes `read` and `write`, and `manage` for keys, members, billing and notifications. " +
					"Default: the environment variable `WEIR_KEY`, or the key of `weir login` for this server.",
			},
			"timeout": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Timeout of a request, such as `10s`. Default `30s`. A request that fails for a passing reason is sent up to five times.",
			},
		},
	}
}

// Configure creates the client. It is left out while the configuration is not known.
func (p *Weir) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var m providerModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() || m.URL.IsUnknown() || m.Key.IsUnknown() || m.Timeout.IsUnknown() {
		return
	}
	c := &client.Client{
		URL: m.URL.ValueString(), Key: m.Key.ValueString(), Timeout: client.DefaultTimeout, Attempts: client.DefaultAttempts, Pause: p.pause, HTTP: p.transport,
		UserAgent: fmt.Sprintf("terraform-provider-weir/%s (%s; %s) terraform/%s", p.version, runtime.GOOS, runtime.GOARCH, req.TerraformVersion),
	}
	if c.URL == "" {
		c.URL = p.getenv("WEIR_URL")
	}
	if c.Key == "" {
		c.Key = p.getenv("WEIR_KEY")
	}
	if err := p.login(c); err != nil {
		resp.Diagnostics.AddError("Cannot read the login of the command weir", err.Error())
		return
	}
	if c.URL == "" {
		resp.Diagnostics.AddAttributeError(path.Root("url"), "Missing server address", "Set url, the environment variable WEIR_URL, or run weir login URL.")
	}
	if c.Key == "" {
		resp.Diagnostics.AddAttributeError(path.Root("key"), "Missing API key", "Set the environment variable WEIR_KEY, or key, or run weir login URL.")
	}
	if text := m.Timeout.ValueString(); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout <= 0 {
			resp.Diagnostics.AddAttributeError(path.Root("timeout"), "Invalid timeout", fmt.Sprintf("%q must be a duration such as 10s.", text))
		}
		c.Timeout = timeout
	}
	if c.URL != "" {
		clean, err := client.CleanURL(c.URL)
		if err != nil {
			resp.Diagnostics.AddAttributeError(path.Root("url"), "Invalid server address", err.Error())
		}
		c.URL = clean
	}
	if resp.Diagnostics.HasError() {
		return
	}
	resp.ResourceData, resp.DataSourceData, resp.EphemeralResourceData = c, c, c
}

// login completes the client with what weir login stored: the server, or the key for the same
// server.
func (p *Weir) login(c *client.Client) error {
	if c.Key != "" {
		return nil
	}
	folder := p.getenv("XDG_CONFIG_HOME")
	if folder == "" {
		if folder = p.getenv("HOME"); folder == "" {
			return nil
		}
		folder = filepath.Join(folder, ".config")
	}
	name := filepath.Join(folder, "weir", "login.json")
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var stored struct{ URL, Key string }
	if err == nil {
		err = json.Unmarshal(content, &stored)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	wanted, errWanted := client.CleanURL(c.URL)
	if c.URL == "" || errWanted == nil && wanted == stored.URL {
		c.URL, c.Key = stored.URL, stored.Key
	}
	return nil
}

// Resources returns the resources of all kinds.
func (p *Weir) Resources(context.Context) (out []func() resource.Resource) {
	for _, k := range sortedKinds() {
		if !k.noResource {
			out = append(out, func() resource.Resource { return &object{kind: k} })
		}
	}
	return out
}

// DataSources returns the data sources of all kinds.
func (p *Weir) DataSources(context.Context) (out []func() datasource.DataSource) {
	for _, k := range sortedKinds() {
		for i := range k.sources() {
			out = append(out, func() datasource.DataSource { return k.sources()[i] })
		}
	}
	return out
}

// EphemeralResources returns the ephemeral key.
func (p *Weir) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{func() ephemeral.EphemeralResource { return &ephemeralKey{} }}
}
