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

// ValidateConfig refuses values that the schemas of the API exclude.
func (r *object) ValidateConfig(_ context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	config, err := values(req.Config.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid configuration", err.Error())
		return
	}
	for _, a := range r.kind.attributes {
		a.validate(config[a.name], path.Root(a.name), "/"+a.apiName(), &resp.Diagnostics)
	}
}

func (a *attribute) validate(x any, at path.Path, pointer string, diags *diag.Diagnostics) {
	wrong := func(format string, args ...any) {
		diags.AddAttributeError(at, "Invalid value", pointer+" must be "+fmt.Sprintf(format, args...)+".")
	}
	switch x := x.(type) {
	case nil, unknown:
		return
	case string:
		if len(a.choices) > 0 && a.form == textForm && !slices.Contains(a.choices, any(x)) {
			wrong("%s", oneOf(a.choices))
		}
		if _, err := time.Parse(time.RFC3339Nano, x); a.instant && err != nil {
			wrong("a time such as 2026-01-31T12:00:00Z (RFC 3339)")
		}
	case json.Number:
		n, _ := x.Float64()
		switch {
		case a.form == integerForm && strings.Contains(x.String(), "."):
			wrong("a whole number")
		case len(a.choices) > 0 && !slices.ContainsFunc(a.choices, func(c any) bool { return c == n }):
			wrong("%s", oneOf(a.choices))
		case a.minimum != nil && n < *a.minimum, a.maximum != nil && n > *a.maximum:
			wrong("%s", between(a.minimum, a.maximum))
		}
	case []any:
		for i, item := range x {
			switch text, isText := item.(string); {
			case a.form == objectListForm:
				a.validateFields(item, at.AtListIndex(i), fmt.Sprintf("%s/%d", pointer, i), diags)
			case isText && len(a.choices) > 0 && !slices.Contains(a.choices, any(text)):
				diags.AddAttributeError(at, "Invalid value", fmt.Sprintf("%s/%d must be %s, not %q.", pointer, i, oneOf(a.choices), text))
			}
		}
	case map[string]any:
		if a.form == objectForm {
			a.validateFields(x, at, pointer, diags)
			return
		}
		for name, entry := range x {
			if a.form == objectMapForm {
				a.validateFields(entry, at.AtMapKey(name), pointer+"/"+name, diags)
			}
		}
	}
}

func (a *attribute) validateFields(x any, at path.Path, pointer string, diags *diag.Diagnostics) {
	object, _ := x.(map[string]any)
	for _, f := range a.fields {
		f.validate(object[f.name], at.AtName(f.name), pointer+"/"+f.name, diags)
	}
}

func oneOf(choices []any) string {
	texts := make([]string, len(choices))
	for i, c := range choices {
		texts[i] = fmt.Sprint(c)
	}
	return "one of " + strings.Join(texts, ", ")
}

func between(minimum, maximum *float64) string {
	switch {
	case maximum == nil:
		return fmt.Sprintf("at least %.0f", *minimum)
	case minimum == nil:
		return fmt.Sprintf("at most %.0f", *maximum)
	}
	return fmt.Sprintf("from %.0f to %.0f", *minimum, *maximum)
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

// stateOf returns the state of an object: an answer, and for what is not part of answers the values
// before. adopt includes attributes that are not managed yet.
func (k *kind) stateOf(answer, before map[string]any, adopt bool) map[string]any {
	state := map[string]any{}
	for _, a := range k.attributes {
		x, b := answer[a.apiName()], before[a.name]
		if !isKnown(b) {
			b = nil
		}
		switch {
		case a.writeOnly:
			x = nil
		case a.inPath:
			x = b
		case a.once && x == nil, a.opaque && x != nil && b != nil:
			x = b
		case a.unmanaged && b == nil && !adopt:
			x = nil
		case a.unmanaged && allEmpty(x) && b == nil:
			x = nil
		default:
			x = a.stored(x, b)
		}
		state[a.name] = x
	}
	return state
}

func allEmpty(x any) bool {
	entries, _ := x.(map[string]any)
	return len(entries) == 0
}

// differences returns the names of attributes of which the state has other values than wanted. It
// ignores those that Terraform does not manage.
func (k *kind) differences(state, wanted map[string]any) (names []string) {
	for _, a := range k.attributes {
		w := wanted[a.name]
		ignored := a.inPath || a.once || a.opaque || a.writeOnly || !a.optional && !a.required || a.unmanaged && w == nil
		if !ignored && isKnown(w) && !a.same(state[a.name], w) {
			names = append(names, a.name)
		}
	}
	return names
}

// bodyOf returns the body with all configured values.
func (k *kind) bodyOf(config map[string]any) map[string]any {
	body := map[string]any{}
	for _, a := range k.attributes {
		if x := config[a.name]; x != nil && !a.inPath && (a.optional || a.required) && a.name != "newest_version" {
			body[a.apiName()] = x
		}
	}
	return body
}

// patchOf returns the merge patch that changes the state to the plan. What is not configured is
// reset to its default.
func (k *kind) patchOf(config, planned, state map[string]any) map[string]any {
	body := map[string]any{}
	resend := !reflectSame(planned["secrets_version"], state["secrets_version"])
	for _, a := range k.attributes {
		switch {
		case a.inPath || !a.optional && !a.required || a.name == "newest_version":
		case a.unmanaged && config[a.name] == nil:
		case a.writeOnly:
			if resend {
				body[a.apiName()] = config[a.name]
			}
		case !isKnown(planned[a.name]) || a.same(planned[a.name], state[a.name]):
		default:
			body[a.apiName()] = a.patch(config[a.name], state[a.name])
		}
	}
	return body
}

func reflectSame(x, y any) bool { return fmt.Sprint(x) == fmt.Sprint(y) }

// patch returns the merge patch of one value: what is not in it is null.
func (a *attribute) patch(x, before any) any {
	complete := func(x any) any {
		object, _ := x.(map[string]any)
		out := map[string]any{}
		for _, f := range a.fields {
			out[f.name] = object[f.name]
		}
		return out
	}
	entries, isMap := x.(map[string]any)
	switch {
	case !isMap:
		return x
	case a.form == objectForm:
		return complete(x)
	}
	out := map[string]any{}
	for name, entry := range entries {
		if out[name] = entry; a.form == objectMapForm {
			out[name] = complete(entry)
		}
	}
	old, _ := before.(map[string]any)
	for name := range old {
		if _, kept := entries[name]; !kept {
			out[name] = nil
		}
	}
	return out
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

// ImportState reads the object with an id such as a slug.
func (r *object) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	if !ready(r.client, &resp.Diagnostics) {
		return
	}
	k := r.kind
	named, err := r.parseID(ctx, req.ID)
	if err != nil {
		addError(&resp.Diagnostics, k.attributes, "Cannot import "+k.name+" "+req.ID, err)
		return
	}
	answer, err := r.client.Do(ctx, client.Call{Method: http.MethodGet, Path: k.pathOf(named)})
	if err != nil {
		addError(&resp.Diagnostics, k.attributes, "Cannot import "+k.name+" "+req.ID, err)
		return
	}
	if k.gone != nil {
		if reason, gone := k.gone(answer.Body); gone {
			resp.Diagnostics.AddError("Cannot import "+k.name+" "+req.ID, reason)
			return
		}
	}
	resp.State.Raw = r.raw(k.stateOf(answer.Body, named, true), &resp.Diagnostics)
	keepETag(ctx, resp.Private, answer.ETag, &resp.Diagnostics)
}

// parseID returns the attributes that an import id names.
func (r *object) parseID(ctx context.Context, id string) (map[string]any, error) {
	k := r.kind
	named := map[string]any{}
	switch len(k.key) {
	case 0:
		return named, nil
	case 1:
		named[k.key[0]] = id
	default:
		cut := strings.LastIndexByte(id, '/') // a slug contains no slash, a subject may
		if cut < 0 {
			return nil, fmt.Errorf("the id must have the form %s", strings.ToUpper(strings.Join(k.key, "/")))
		}
		named[k.key[0]], named[k.key[1]] = id[:cut], id[cut+1:]
	}
	if k.name != "member" || !strings.Contains(id, "@") {
		return named, nil
	}
	members, err := r.client.List(ctx, k.collection, nil)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if email, _ := m["email"].(string); strings.EqualFold(email, id) {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no member and no invitation has the address %s", id)
}

// importID returns the id that imports an object.
func (k *kind) importID(object map[string]any) string {
	parts := make([]string, len(k.key))
	for i, name := range k.key {
		parts[i], _ = object[name].(string)
	}
	return strings.Join(parts, "/")
}

// title names an object in messages.
func (k *kind) title(object map[string]any) string {
	name := strings.ReplaceAll(k.name, "_", " ")
	if id := k.importID(object); id != "" {
		return name + " " + id
	}
	for _, other := range []string{"name", "email", "url"} {
		if text, isText := object[other].(string); isText && text != "" {
			return name + " " + text
		}
	}
	return "the " + name
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
