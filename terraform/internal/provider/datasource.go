package provider

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"weir/terraform/internal/client"
)

// A source is a data source of a kind: one object, or a list.
type source struct {
	kind       *kind
	list       bool
	attributes []*attribute
	client     *client.Client
}

var _ datasource.DataSourceWithConfigure = (*source)(nil)

// sources returns the data sources of a kind.
func (k *kind) sources() []*source {
	var out []*source
	if k.path != "" {
		s := &source{kind: k}
		for _, a := range k.oneAttrs {
			named := *a
			named.required = slices.Contains(k.key, a.name)
			s.attributes = append(s.attributes, &named)
		}
		out = append(out, s)
	}
	if k.collection != "" {
		s := &source{kind: k, list: true}
		for _, f := range k.filters {
			name := strings.Trim(f.name, "{}")
			inPath := name != f.name
			s.attributes = append(s.attributes, &attribute{name: name, doc: f.doc, required: inPath, optional: !inPath, inPath: inPath})
		}
		s.attributes = append(s.attributes, &attribute{name: "items", form: objectListForm, fields: k.itemAttrs, computed: true, doc: "The objects"})
		out = append(out, s)
	}
	return out
}

func (s *source) name() string {
	if s.list {
		return s.kind.plural
	}
	return s.kind.name
}

// Metadata names the data source.
func (s *source) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + s.name()
}

func (s *source) about() string {
	if s.list {
		return "All " + strings.ReplaceAll(s.kind.plural, "_", " ") + ", or those that match the filters."
	}
	return s.kind.about
}

// Schema describes the attributes.
func (s *source) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	attributes := map[string]schema.Attribute{}
	for _, a := range s.attributes {
		attributes[a.name] = a.dataSource()
	}
	resp.Schema = schema.Schema{MarkdownDescription: s.about(), Attributes: attributes}
}

// Configure gets the client from the provider.
func (s *source) Configure(_ context.Context, req datasource.ConfigureRequest, _ *datasource.ConfigureResponse) {
	s.client, _ = req.ProviderData.(*client.Client)
}

// Read reads the object, or the list.
func (s *source) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	config, err := values(req.Config.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid configuration", err.Error())
		return
	}
	if !ready(s.client, &resp.Diagnostics) {
		return
	}
	state, err := s.read(ctx, config)
	if err != nil {
		addError(&resp.Diagnostics, s.attributes, "Cannot read "+strings.ReplaceAll(s.name(), "_", " "), err)
		return
	}
	resp.State.Raw = s.raw(state, &resp.Diagnostics)
}

func (s *source) read(ctx context.Context, config map[string]any) (map[string]any, error) {
	state := map[string]any{}
	if !s.list {
		answer, err := s.client.Do(ctx, client.Call{Method: http.MethodGet, Path: s.kind.pathOf(config)})
		if err != nil {
			return nil, err
		}
		for _, a := range s.attributes {
			if state[a.name] = answer.Body[a.apiName()]; a.required {
				state[a.name] = config[a.name]
			}
		}
		return state, nil
	}
	query := url.Values{}
	for _, a := range s.attributes {
		if text, given := config[a.name].(string); given {
			state[a.name] = text
			if !a.inPath {
				query.Set(a.name, text)
			}
		}
	}
	items, err := s.client.List(ctx, expand(s.kind.collection, config), query)
	if err != nil {
		return nil, err
	}
	objects := make([]any, len(items))
	for i, item := range items {
		object := map[string]any{}
		for _, a := range s.kind.itemAttrs {
			object[a.name] = item[a.apiName()]
		}
		objects[i] = object
	}
	state["items"] = objects
	return state, nil
}

func (s *source) raw(state map[string]any, diags *diag.Diagnostics) tftypes.Value {
	v, err := tfObject(s.attributes, state)
	if err != nil {
		diags.AddError("Unexpected answer of the server", s.name()+": "+err.Error()+". The provider may be older than the server: update it.")
		return tftypes.NewValue(objectType(s.attributes), nil)
	}
	return v
}
