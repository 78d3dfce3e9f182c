package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"weir/terraform/internal/client"
)

// An object is the resource of a kind.
type object struct {
	kind   *kind
	client *client.Client
}

var (
	_ resource.ResourceWithConfigure      = (*object)(nil)
	_ resource.ResourceWithImportState    = (*object)(nil)
	_ resource.ResourceWithModifyPlan     = (*object)(nil)
	_ resource.ResourceWithValidateConfig = (*object)(nil)
)

// Metadata names the resource.
func (r *object) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + r.kind.name
}

// Schema describes the attributes.
func (r *object) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{MarkdownDescription: r.kind.about, Attributes: resourceAttributes(r.kind.attributes)}
}

// Configure gets the client from the provider.
func (r *object) Configure(_ context.Context, req resource.ConfigureRequest, _ *resource.ConfigureResponse) {
	r.client, _ = req.ProviderData.(*client.Client)
}

// ModifyPlan plans all values: those that are not configured get their default, so that a change
// outside of Terraform is seen for them, too.
func (r *object) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return // it is going to be destroyed
	}
	config, err := values(req.Config.Raw)
	state, errState := values(req.State.Raw)
	if err = errors.Join(err, errState); err != nil {
		resp.Diagnostics.AddError("Invalid configuration", err.Error())
		return
	}
	creating := req.State.Raw.IsNull()
	planned := r.kind.plan(config, state, creating)
	for _, a := range r.kind.attributes {
		if !creating && a.immutable && !a.same(planned[a.name], state[a.name]) {
			resp.RequiresReplace = append(resp.RequiresReplace, path.Root(a.name))
		}
	}
	if r.kind.verify != nil {
		if field, message := r.kind.verify(state, planned); field != "" {
			resp.Diagnostics.AddAttributeError(path.Root(field), "Invalid value", "/"+field+" "+message)
		}
	}
	resp.Plan.Raw = r.raw(planned, &resp.Diagnostics)
}

// plan returns the planned values.
func (k *kind) plan(config, state map[string]any, creating bool) map[string]any {
	planned := map[string]any{}
	for _, a := range k.attributes {
		switch x := config[a.name]; {
		case a.writeOnly:
			planned[a.name] = nil
		case x != nil:
			planned[a.name] = a.planned(x)
		case a.hasFallback:
			planned[a.name] = a.fallback
		case !a.computed:
			planned[a.name] = nil
		case creating:
			planned[a.name] = unknown{}
		default:
			planned[a.name] = state[a.name]
		}
	}
	if k.derive != nil {
		k.derive(planned)
	}
	if creating {
		return planned
	}
	changed := false
	for _, a := range k.attributes {
		if isKnown(planned[a.name]) && a.same(planned[a.name], state[a.name]) {
			planned[a.name] = state[a.name] // the notation may differ
		} else {
			changed = true
		}
	}
	for _, a := range k.attributes {
		if changed && a.unstable && config[a.name] == nil {
			planned[a.name] = unknown{}
		}
	}
	return planned
}

// raw converts values for Terraform.
func (r *object) raw(object map[string]any, diags *diag.Diagnostics) tftypes.Value {
	v, err := tfObject(r.kind.attributes, object)
	if err != nil {
		diags.AddError("Unexpected answer of the server", fmt.Sprintf("weir_%s: %s. The provider may be older than the server: update it.", r.kind.name, err))
		return tftypes.NewValue(objectType(r.kind.attributes), nil)
	}
	return v
}

// private is the part of the state that only the provider sees.
type private interface {
	SetKey(ctx context.Context, key string, value []byte) diag.Diagnostics
}

const etagKey = "etag"

func keepETag(ctx context.Context, p private, etag string, diags *diag.Diagnostics) {
	encoded, err := json.Marshal(etag)
	if err == nil {
		diags.Append(p.SetKey(ctx, etagKey, encoded)...)
	}
}

// ready reports whether the provider is configured.
func ready(c *client.Client, diags *diag.Diagnostics) bool {
	if c == nil {
		diags.AddError("The provider is not configured", "The url or the key of the provider is not known yet. Set them to values that are known before the apply.")
	}
	return c != nil
}

// Create creates the object.
func (r *object) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	config, err := values(req.Config.Raw)
	planned, errPlan := values(req.Plan.Raw)
	if err = errors.Join(err, errPlan); err != nil {
		resp.Diagnostics.AddError("Invalid plan", err.Error())
		return
	}
	if !ready(r.client, &resp.Diagnostics) {
		return
	}
	k := r.kind
	what := "Cannot create " + k.title(planned)
	body := k.bodyOf(config)
	var answer *client.Answer
	switch k.method {
	case post:
		answer, err = r.post(ctx, body)
	case put:
		if _, err = r.client.Do(ctx, client.Call{Method: http.MethodGet, Path: k.pathOf(planned)}); err == nil {
			resp.Diagnostics.AddError(what+": it exists", "To manage the existing object, import it: terraform import weir_"+k.name+".NAME "+k.importID(planned))
			return
		}
		if client.Is(err, http.StatusNotFound, "") {
			answer, err = r.client.Do(ctx, client.Call{Method: put, Path: k.pathOf(planned), Body: body})
		}
	case patch:
		for _, a := range k.attributes {
			if _, given := body[a.apiName()]; a.optional && !given {
				body[a.apiName()] = nil
			}
		}
		answer, err = r.client.Do(ctx, client.Call{Method: patch, Path: k.path, Body: body})
	}
	if err != nil {
		addError(&resp.Diagnostics, k.attributes, what, err)
		return
	}
	resp.State.Raw = r.raw(k.stateOf(answer.Body, planned, false), &resp.Diagnostics)
	keepETag(ctx, resp.Private, answer.ETag, &resp.Diagnostics)
	addWarnings(&resp.Diagnostics, k.attributes, answer.Body)
}

// post creates an object. If an attempt created it but its answer was lost, the answer to the next
// attempt has no secret. Then the object is deleted, and created again.
func (r *object) post(ctx context.Context, body map[string]any) (*client.Answer, error) {
	answer, err := r.client.Do(ctx, client.Call{Method: post, Path: r.kind.collection, Body: body})
	if err != nil || answer.Body["secret_omitted"] != true {
		return answer, err
	}
	if _, err := r.client.Do(ctx, client.Call{Method: http.MethodDelete, Path: r.kind.pathOf(answer.Body)}); err != nil {
		return nil, fmt.Errorf("the secret of the new object was lost, and the object cannot be deleted: %w", err)
	}
	return r.client.Do(ctx, client.Call{Method: post, Path: r.kind.collection, Body: body})
}

// addWarnings shows the warnings of a write.
func addWarnings(diags *diag.Diagnostics, attributes []*attribute, answer map[string]any) {
	warnings, _ := answer["warnings"].([]any)
	for _, w := range warnings {
		warning, _ := w.(map[string]any)
		pointer, _ := warning["pointer"].(string)
		message, _ := warning["message"].(string)
		if at, found := pathOfPointer(attributes, pointer); found {
			diags.AddAttributeWarning(at, "Weir accepts the value with a warning", pointer+": "+message)
		} else {
			diags.AddWarning("Weir accepts the object with a warning", message)
		}
	}
}

// Read refreshes the state.
func (r *object) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	state, err := values(req.State.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid state", err.Error())
		return
	}
	if !ready(r.client, &resp.Diagnostics) {
		return
	}
	answer, err := r.client.Do(ctx, client.Call{Method: http.MethodGet, Path: r.kind.pathOf(state)})
	if client.Is(err, http.StatusNotFound, "") {
		resp.State.RemoveResource(ctx)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, r.kind.attributes, "Cannot read "+r.kind.title(state), err)
		return
	}
	if r.kind.gone != nil {
		if reason, gone := r.kind.gone(answer.Body); gone {
			resp.Diagnostics.AddWarning("Terraform creates "+r.kind.title(state)+" again", reason)
			resp.State.RemoveResource(ctx)
			return
		}
	}
	resp.State.Raw = r.raw(r.kind.stateOf(answer.Body, state, false), &resp.Diagnostics)
	keepETag(ctx, resp.Private, answer.ETag, &resp.Diagnostics)
}

// Update changes the object, unless somebody else changed it after the plan.
func (r *object) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	config, err := values(req.Config.Raw)
	planned, errPlan := values(req.Plan.Raw)
	state, errState := values(req.State.Raw)
	if err = errors.Join(err, errPlan, errState); err != nil {
		resp.Diagnostics.AddError("Invalid plan", err.Error())
		return
	}
	if !ready(r.client, &resp.Diagnostics) {
		return
	}
	k := r.kind
	var etag string
	if stored, _ := req.Private.GetKey(ctx, etagKey); stored != nil {
		_ = json.Unmarshal(stored, &etag) // it was encoded by keepETag
	}
	answer, err := r.change(ctx, config, planned, state, etag)
	if err != nil {
		addError(&resp.Diagnostics, k.attributes, "Cannot change "+k.title(state), err)
		return
	}
	resp.State.Raw = r.raw(k.stateOf(answer.Body, planned, false), &resp.Diagnostics)
	keepETag(ctx, resp.Private, answer.ETag, &resp.Diagnostics)
	addWarnings(&resp.Diagnostics, k.attributes, answer.Body)
}

func (r *object) change(ctx context.Context, config, planned, state map[string]any, etag string) (*client.Answer, error) {
	k := r.kind
	at := k.pathOf(state)
	if k.replaces {
		return r.write(ctx, client.Call{Method: put, Path: at, Body: k.bodyOf(config), IfMatch: etag}, planned, state)
	}
	before, err := r.withUnmanaged(ctx, config, state)
	if err != nil {
		return nil, err
	}
	body := k.patchOf(config, planned, before)
	if number := planned["newest_version"]; number != nil && isKnown(number) && !sameNumber(number, state["newest_version"]) {
		version := map[string]any{}
		if limits, changed := body["limits"]; changed {
			version["limits"] = limits
			delete(body, "limits")
		}
		answer, err := r.client.Do(ctx, client.Call{Method: post, Path: at + "/versions", Body: version})
		if err != nil || len(body) == 0 {
			return answer, err
		}
		etag = answer.ETag
	}
	if len(body) == 0 {
		return r.client.Do(ctx, client.Call{Method: http.MethodGet, Path: at})
	}
	return r.write(ctx, client.Call{Method: patch, Path: at, Body: body, IfMatch: etag}, planned, state)
}

// withUnmanaged returns the state with what the server has of attributes that the plan begins to
// manage, so that a patch also deletes what is not configured.
func (r *object) withUnmanaged(ctx context.Context, config, state map[string]any) (map[string]any, error) {
	before := maps.Clone(state)
	for _, a := range r.kind.attributes {
		if !a.unmanaged || config[a.name] == nil || state[a.name] != nil {
			continue
		}
		now, err := r.client.Do(ctx, client.Call{Method: http.MethodGet, Path: r.kind.pathOf(state)})
		if err != nil {
			return nil, err
		}
		before[a.name] = now.Body[a.apiName()]
	}
	return before, nil
}

// maxConflicts is how often other changes of the same version may come first. Terraform makes ten
// changes at a time, such as of ten limits of one plan.
const maxConflicts = 50

// write changes an object if it is what the plan was made for. Objects can share a version, such as
// the limits of a plan, so another version alone does not mean that this part has changed.
func (r *object) write(ctx context.Context, call client.Call, planned, state map[string]any) (*client.Answer, error) {
	answer, err := r.client.Do(ctx, call)
	for range maxConflicts {
		if !client.Is(err, http.StatusPreconditionFailed, "") {
			return answer, err
		}
		now, errNow := r.client.Do(ctx, client.Call{Method: http.MethodGet, Path: call.Path})
		if errNow != nil {
			return nil, errNow
		}
		present := r.kind.stateOf(now.Body, state, true)
		if len(r.kind.differences(present, planned)) == 0 {
			return now, nil // the answer to an earlier attempt was lost
		}
		if changed := r.kind.differences(present, state); len(changed) > 0 {
			var p *client.Problem
			if errors.As(err, &p) {
				p.Detail = "Changed since the plan: " + strings.Join(changed, ", ") + "."
			}
			return nil, err
		}
		call.IfMatch = now.ETag
		answer, err = r.client.Do(ctx, call)
	}
	return answer, err
}

// The default plan can be deleted only after all others, which Terraform may be deleting at the
// same time.
const (
	defaultPlanAttempts = 30
	defaultPlanPause    = 500 * time.Millisecond
)

// Delete deletes the object.
func (r *object) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	state, err := values(req.State.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid state", err.Error())
		return
	}
	if r.kind.forget || !ready(r.client, &resp.Diagnostics) {
		return
	}
	call := client.Call{Method: http.MethodDelete, Path: r.kind.pathOf(state)}
	if r.kind.method == patch {
		body := map[string]any{}
		for _, a := range r.kind.attributes {
			if a.optional {
				body[a.apiName()] = nil
			}
		}
		call.Method, call.Body = patch, body
	}
	for attempt := 1; ; attempt++ {
		_, err = r.client.Do(ctx, call)
		if !client.Is(err, http.StatusConflict, "DEFAULT_PLAN") || attempt == defaultPlanAttempts || r.client.Wait(ctx, defaultPlanPause) != nil {
			break
		}
	}
	if err != nil && !client.Is(err, http.StatusNotFound, "") {
		addError(&resp.Diagnostics, r.kind.attributes, "Cannot delete "+r.kind.title(state), err)
	}
}

// sortedKinds returns the kinds in the order of their names.
func sortedKinds() []*kind {
	return slices.SortedFunc(maps.Values(byName()), func(a, b *kind) int { return strings.Compare(a.name, b.name) })
}

func byName() map[string]*kind {
	out := map[string]*kind{}
	for _, k := range kinds {
		out[k.name] = k
	}
	return out
}
