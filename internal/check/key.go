package check

import (
	"encoding/binary"
	"strings"

	"github.com/dchest/siphash"
)

// Keys spells counter keys: "w{tag}name", 14 bytes and not all of them text, so that Redis keeps
// one in 16 bytes. The tag, in Redis Cluster's braces, is two bytes that depend on the tenant
// alone, so all counters of a check share a slot. The name is a keyed 72-bit hash (SipHash-2-4) of
// the tenant, the rule and the values that it counts by, each with its length before it: no
// separator can be forged, no collision be built without the secret, and no customer's data
// stands in Redis. That any two of a tenant's hundred million counters meet by chance has a
// probability of one in a million.
type Keys struct{ k0, k1 uint64 }

// NewKeys returns the Keys of one deployment. All its instances must have the same secret.
func NewKeys(secret [16]byte) Keys {
	return Keys{binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])}
}

// keyPrefix begins every key that Weir keeps in Redis.
const keyPrefix = "w{"

// tenantPrefix returns what all counter keys of a tenant begin with. Tenants that share a tag share
// a slot, and nothing else.
func (k Keys) tenantPrefix(tenant TenantID) string {
	h, _ := siphash.Hash128(k.k0, k.k1, tenant[:])
	return keyPrefix + string([]byte{tagByte(h), tagByte(h >> 32), '}'})
}

// tagByte returns one of the 255 bytes that do not end a tag.
func tagByte(h uint64) byte {
	b := byte(uint32(h) % 255)
	if b >= '}' {
		b++
	}
	return b
}

// hashTag returns the part of a key that chooses its slot.
func hashTag(key string) string {
	if from := strings.IndexByte(key, '{'); from >= 0 {
		if length := strings.IndexByte(key[from+1:], '}'); length > 0 {
			return key[from+1 : from+1+length]
		}
	}
	return key
}

// ruleIdentity is what names a rule's counters apart from the values counted by: changing any
// part of it begins with fresh state (docs/algorithms.md, "Changing a rule").
func ruleIdentity(tenant TenantID, r *Rule) []byte {
	n := r.Numbers()
	b := append([]byte(nil), tenant[:]...)
	b = appendPart(b, r.Slug)
	b = append(b, byte(n.Algorithm), byte(n.Calendar))
	b = binary.BigEndian.AppendUint64(b, uint64(n.WindowMS))
	b = binary.BigEndian.AppendUint64(b, uint64(n.PrecisionMS))
	b = append(b, byte(len(r.By)))
	for _, by := range r.By {
		b = appendPart(b, by)
	}
	return b
}

func appendPart(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// counterKey returns the key of rule's counter for the request's values, or the name of the
// attribute that the rule counts by and the request lacks. scratch is reused.
func (k Keys) counterKey(scratch []byte, r *compiledRule, req *Request) (key, missing string, buf []byte) {
	b := append(scratch[:0], r.identity...)
	for _, by := range r.rule.By {
		switch by {
		case "subject":
			b = appendPart(b, req.Subject)
		case "resource":
			b = appendPart(b, req.Resource)
		default:
			name := strings.TrimPrefix(by, "attributes.")
			value, ok := req.attribute(name)
			if !ok {
				return "", name, b
			}
			b = appendPart(b, value)
		}
	}
	h0, h1 := siphash.Hash128(k.k0, k.k1, b)
	b = append(b[:0], r.keyPrefix...)
	b = binary.LittleEndian.AppendUint64(b, h0)
	b = append(b, byte(h1))
	return string(b), "", b
}

func (req *Request) attribute(name string) (string, bool) {
	for i := range req.Attributes {
		if req.Attributes[i].Name == name {
			return req.Attributes[i].Value, true
		}
	}
	return "", false
}
