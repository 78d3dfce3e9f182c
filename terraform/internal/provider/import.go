package provider

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/resource"

	"weir/terraform/internal/client"
)

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
