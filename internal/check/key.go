package check

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/dchest/siphash"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Keys creates counter keys: "w{tag}name", 14 bytes that are not all text, so that Redis stores a
// key in 16 bytes. The tag, in the braces of Redis Cluster, is two bytes that depend on the tenant
// only, so all counters of a check share a slot. A tenant with several partitions has several tags
// (places). The name has 72 bits. It is a keyed hash
// (SipHash-2-4) of the tenant and the counted values, each with its length before it, plus a hash
// of the rule. Separators cannot be forged, collisions cannot be constructed without the secret,
// and Redis contains no customer data. The probability that any two of a tenant's hundred million
// counters have the same key by chance is one in a million.
//
// Without the rule's hash, the name is that of the group of these values (lua/group.lua). From any
// two of a counter's key, its group's key and the rule's ID, the third can be computed.
type Keys struct{ k0, k1 uint64 }

// NewKeys returns the Keys of one deployment. All its instances must use the same secret.
func NewKeys(secret [16]byte) Keys {
	return Keys{binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])}
}

// Derive returns a secret of 32 bytes for a purpose. All instances of the deployment derive the
// same secret.
func (k Keys) Derive(purpose string) []byte {
	secret := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, k.k0), k.k1)
	derived, err := hkdf.Key(sha256.New, secret, nil, purpose, 32)
	if err != nil {
		panic("check: " + err.Error()) // 32 bytes are within the limit
	}
	return derived
}

// Private returns the key of a counter of the service itself, which belongs to no rule of a tenant,
// and the ID of its purpose, as that of a rule.
func (k Keys) Private(purpose, value string) (key, id string) {
	name := k.name(appendPart(appendPart([]byte("private"), purpose), value))
	key = string(name.Append([]byte(k.tenantPrefix(limit.TenantID{}))))
	return key, string(k.name(appendPart([]byte("purpose"), purpose)).Append(nil))
}

// tenantPrefix returns the prefix of all counter keys of a tenant. Tenants with the same tag share
// a slot but no keys.
func (k Keys) tenantPrefix(tenant limit.TenantID) string {
	h, _ := siphash.Hash128(k.k0, k.k1, tenant[:])
	return engine.KeyPrefix + string([]byte{tagByte(h), tagByte(h >> 32), '}'})
}

// Prefix returns the beginning of all counter keys of a tenant, up to the end of the hash tag.
func (k Keys) Prefix(tenant limit.TenantID) string { return k.tenantPrefix(tenant) }

// tagByte returns one of the 255 bytes that do not end a tag.
func tagByte(h uint64) byte {
	b := byte(uint32(h) % 255)
	if b >= '}' {
		b++
	}
	return b
}

func (k Keys) name(of []byte) engine.KeyName {
	h0, h1 := siphash.Hash128(k.k0, k.k1, of)
	return engine.KeyName{Low: h0 & (1<<40 - 1), High: (h0>>40 | h1<<24) & (1<<32 - 1)}
}

// ruleID returns a hash that distinguishes the counters of a rule from those of other rules that
// count the same values. If any part of it changes, the rule starts with new counters
// (docs/algorithms.md, "Changing a rule").
func (k Keys) ruleID(tenant limit.TenantID, r *limit.Rule) engine.KeyName {
	n := r.Numbers()
	b := append([]byte("rule"), tenant[:]...)
	b = appendPart(b, r.Slug)
	b = append(b, byte(n.Algorithm), byte(n.Calendar))
	b = binary.BigEndian.AppendUint64(b, uint64(n.WindowMS))
	b = binary.BigEndian.AppendUint64(b, uint64(n.PrecisionMS))
	return k.name(b)
}

func appendPart(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// keyMaker creates the keys of one request. Rules that count by the same values share the hash of
// these values.
type keyMaker struct {
	keys   Keys
	buf    []byte  // used again
	last   *byList // the list whose values were hashed last
	values engine.KeyName
	group  string // the key of the group of these values; "": not spelled yet
	place  string // the beginning of the keys of these values
	from   string // while the place changes: the old one; else ""
}

// begin resets the keyMaker for a request.
func (m *keyMaker) begin(keys Keys) { *m = keyMaker{keys: keys, buf: m.buf} }

// counter fills in the key of a rule's counter for the request's values, or returns the name of an
// attribute by which the rule counts and that the request does not have.
func (m *keyMaker) counter(c *engine.Counter, r *compiledRule, req *Request) (missing string) {
	if m.last != r.by {
		if missing = m.hash(r.by, req); missing != "" {
			return missing
		}
	}
	c.ID, c.Grouped = r.id, r.grouped
	if !r.grouped {
		c.Key = m.spell(m.values.Plus(r.name))
		return ""
	}
	if m.group == "" {
		m.group = m.spell(m.values)
	}
	c.Key = m.group
	return ""
}

func (m *keyMaker) spell(name engine.KeyName) string {
	m.buf = name.Append(append(m.buf[:0], m.place...))
	return string(m.buf)
}

// hash hashes the values by which rules count.
func (m *keyMaker) hash(by *byList, req *Request) (missing string) {
	m.last = nil
	b := append(m.buf[:0], by.prefix...)
	for i := range by.parts {
		part := &by.parts[i]
		switch part.kind {
		case bySubject:
			b = appendPart(b, req.Subject)
		case byResource:
			b = appendPart(b, req.Resource)
		case byAttribute:
			value, ok := req.attribute(part.name)
			if !ok {
				m.buf = b
				return part.name
			}
			b = appendPart(b, value)
		}
	}
	m.last, m.values, m.group = by, m.keys.name(b), ""
	m.buf = b
	if m.place = by.places.only; m.place == "" {
		m.findPlace(by, req)
	}
	return ""
}

// findPlace finds the place of the values, for a tenant with several partitions.
func (m *keyMaker) findPlace(by *byList, req *Request) {
	m.place, m.from = m.placeIn(by.places, by, req), ""
	if before := by.places.before; before != nil {
		if from := m.placeIn(before, by, req); from != m.place {
			m.from = from
		}
	}
}

func (m *keyMaker) placeIn(at *places, by *byList, req *Request) string {
	switch {
	case by.subject:
		return at.ofSubject(req.Subject)
	case len(by.parts) > 0:
		return at.ofValues(m.values)
	}
	return at.prefixes[0]
}

// byList is a list of values by which some rules of a tenant count.
type byList struct {
	parts   []byPart
	prefix  []byte // the beginning of the hashed text: the tenant, and the parts' names
	places  *places
	subject bool // it is among the parts
}

// has reports whether an attribute is in the list.
func (l *byList) has(attribute string) bool {
	return slices.ContainsFunc(l.parts, func(p byPart) bool { return p.kind == byAttribute && p.name == attribute })
}

// bytes returns the approximate size of the list.
func (l *byList) bytes() int {
	return sizeOf[byList]() + len(l.prefix) + len(l.parts)*sizeOf[byPart]()
}

type byPart struct {
	kind byKind
	name string // of the attribute
}

type byKind uint8

const (
	bySubject byKind = iota
	byResource
	byAttribute
)

func newByList(tenant limit.TenantID, names []string, at *places) *byList {
	l := &byList{prefix: append([]byte("values"), tenant[:]...), places: at}
	l.prefix = append(l.prefix, byte(len(names)))
	for _, by := range names {
		l.prefix = appendPart(l.prefix, by)
		switch by {
		case "subject":
			l.subject = true
			l.parts = append(l.parts, byPart{kind: bySubject})
		case "resource":
			l.parts = append(l.parts, byPart{kind: byResource})
		default:
			name, _ := limit.AttributeOf(by)
			l.parts = append(l.parts, byPart{kind: byAttribute, name: name})
		}
	}
	return l
}

func (req *Request) attribute(name string) (string, bool) {
	for i := range req.Attributes {
		if req.Attributes[i].Name == name {
			return req.Attributes[i].Value, true
		}
	}
	return "", false
}
