package provider

import (
	"fmt"
)

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
