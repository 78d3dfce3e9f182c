package tenants

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weir/internal/limit"
)

// KeyBounds restrict an API key besides its scopes.
type KeyBounds struct {
	Addresses []string `json:"addresses,omitempty"` // networks from which it works, such as 192.0.2.0/24; none: all
	Resources []string `json:"resources,omitempty"` // what it may check: a resource, or the beginning of resources and *; none: all
}

// MaxKeyBounds is the maximum number of networks, and of resources, of a key.
const MaxKeyBounds = 20

func (b KeyBounds) same(o KeyBounds) bool {
	return slices.Equal(b.Addresses, o.Addresses) && slices.Equal(b.Resources, o.Resources)
}

func (b KeyBounds) clone() KeyBounds {
	return KeyBounds{Addresses: slices.Clone(b.Addresses), Resources: slices.Clone(b.Resources)}
}

// clean brings the networks into one form, and returns the errors. The lists are never nil.
func (b *KeyBounds) clean(scopes []Scope) (fields []limit.FieldError) {
	add := func(field string, problem *limit.Problem) {
		fields = append(fields, limit.FieldProblem(field, problem))
	}
	clean := KeyBounds{Addresses: []string{}, Resources: []string{}}
	for _, list := range []struct {
		field string
		texts *[]string
	}{{"addresses", &b.Addresses}, {"resources", &b.Resources}} {
		if len(*list.texts) > MaxKeyBounds { // the work for a list grows with the square of its length
			add(list.field, limit.Wrong("Remove some.", "may be at most %d", MaxKeyBounds))
			*list.texts = (*list.texts)[:MaxKeyBounds]
		}
	}
	for i, text := range b.Addresses {
		at := "addresses." + strconv.Itoa(i)
		network, ok := parseNetwork(text)
		switch {
		case !ok:
			add(at, limit.MustBe("an address or a network such as 192.0.2.0/24"))
		case slices.Contains(clean.Addresses, network.String()):
			add(at, limit.Duplicate)
		}
		clean.Addresses = append(clean.Addresses, network.String())
	}
	for i, pattern := range b.Resources {
		at := "resources." + strconv.Itoa(i)
		switch {
		case !limit.ValidPattern(pattern):
			add(at, limit.MustBe("a resource, or the beginning of resources and *, such as chat.*"))
		case slices.Contains(clean.Resources, pattern):
			add(at, limit.Duplicate)
		}
		clean.Resources = append(clean.Resources, pattern)
	}
	// The other scopes are not about a resource, so the key could do more than its resources say.
	if len(b.Resources) > 0 && !slices.Equal(newScopes(scopes).List(), []Scope{ScopeCheck}) {
		add("resources", limit.Wrong("Remove the resources, or all scopes but check.", "are only for a key with the scope check and no other"))
	}
	*b = clean
	return fields
}

// parseNetwork parses a network or an address.
func parseNetwork(text string) (netip.Prefix, bool) {
	text = strings.TrimSpace(text)
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	network, err := netip.ParsePrefix(text)
	if err != nil || network.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return network.Masked(), true
}

// keyBounds are KeyBounds in the form for checks. They are never changed.
type keyBounds struct {
	KeyBounds
	networks []netip.Prefix
}

// compile returns the bounds for checks, or nil if there are none. A network that cannot be parsed,
// which only another program can have stored, allows no address.
func (b KeyBounds) compile() *keyBounds {
	if len(b.Addresses) == 0 && len(b.Resources) == 0 {
		return nil
	}
	out := &keyBounds{KeyBounds: b}
	for _, text := range b.Addresses {
		if network, ok := parseNetwork(text); ok {
			out.networks = append(out.networks, network)
		}
	}
	return out
}

// bounds returns the actor's bounds as texts.
func (a Actor) keyBounds() KeyBounds {
	if a.bounds == nil {
		return KeyBounds{}
	}
	return a.bounds.KeyBounds
}

// BoundToAddresses reports whether the actor's key works from some addresses only. Call MayConnect
// then.
func (a Actor) BoundToAddresses() bool { return a.bounds != nil && len(a.bounds.Addresses) > 0 }

// MayConnect reports whether the actor's key works from an address.
func (a Actor) MayConnect(from netip.Addr) bool {
	if !a.BoundToAddresses() {
		return true
	}
	from = from.Unmap().WithZone("")
	for _, network := range a.bounds.networks {
		if network.Contains(from) {
			return true
		}
	}
	return false
}

// BoundToResources reports whether the actor's key may check some resources only. Call MayCheck
// then.
func (a Actor) BoundToResources() bool { return a.bounds != nil && len(a.bounds.Resources) > 0 }

// MayCheck reports whether the actor's key may check a resource.
func (a Actor) MayCheck(resource string) bool {
	if !a.BoundToResources() {
		return true
	}
	for _, pattern := range a.bounds.Resources {
		if limit.Matches(pattern, resource) {
			return true
		}
	}
	return false
}

// mayGrantBounds reports whether a key with these bounds works from no address from which the
// actor's key does not. A key with resources creates no keys.
func (a Actor) mayGrantBounds(b KeyBounds) bool {
	if !a.BoundToAddresses() {
		return true
	}
	for _, text := range b.Addresses {
		network, ok := parseNetwork(text)
		if !ok || !slices.ContainsFunc(a.bounds.networks, func(own netip.Prefix) bool {
			return own.Bits() <= network.Bits() && own.Contains(network.Addr())
		}) {
			return false
		}
	}
	return len(b.Addresses) > 0
}
