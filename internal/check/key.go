package check

import (
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/dchest/siphash"
)

// keyPrefix begins every key that Weir keeps in Redis; the 1 is the version of the key format.
const keyPrefix = "w1:"

// Keys spells counter keys: "w1:{tag}:name". The tag, in Redis Cluster's braces, depends on
// the tenant alone, so all counters of a check share a slot. The name is a keyed 128-bit hash
// (SipHash-2-4) of the tenant, the rule and the values that it counts by, each with its length
// before it: no separator can be forged, no collision be built without the secret, and no
// customer's data stands in Redis.
type Keys struct{ k0, k1 uint64 }

// NewKeys returns the Keys of one deployment. All its instances must have the same secret.
func NewKeys(secret [16]byte) Keys {
	return Keys{binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])}
}

const (
	tagBytes  = 6 // 8 characters; tenants that share a tag share a slot, and nothing else
	hashBytes = 16
)

func (k Keys) tenantPrefix(tenant TenantID) string {
	h, _ := siphash.Hash128(k.k0, k.k1, tenant[:])
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], h)
	return keyPrefix + "{" + base64.RawURLEncoding.EncodeToString(b[:tagBytes]) + "}:"
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
	var sum [hashBytes]byte
	binary.LittleEndian.PutUint64(sum[:8], h0)
	binary.LittleEndian.PutUint64(sum[8:], h1)
	b = append(b[:0], r.keyPrefix...)
	b = base64.RawURLEncoding.AppendEncode(b, sum[:])
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
