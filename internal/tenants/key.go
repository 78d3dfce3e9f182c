package tenants

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
)

// KeyKind is the kind of a key.
type KeyKind string

// The kinds of keys.
const (
	TenantKey   KeyKind = "key" // a tenant's
	OperatorKey KeyKind = "op"  // of the operator, only in the platform tenant
)

// A key is "weir_", its kind, "_", 30 random characters of base62 (178 bits), and the CRC-32 (IEEE)
// of all of that in 6 characters. A mistyped key is therefore detected without a lookup, and secret
// scanners can recognize keys.
const (
	keyPrefix    = "weir_"
	randomLength = 30
	crcLength    = 6
	base62       = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// ErrMalformedKey: the text is not a key, by its form or checksum.
var ErrMalformedKey = fmt.Errorf("%w: not an API key", ErrUnauthorized)

// ErrUnauthorized is what all errors about a key itself wrap.
var ErrUnauthorized = errors.New("unauthorized")

// Key is an API key in clear text. It is masked when printed; only Secret returns it.
type Key struct {
	text string
	kind KeyKind
}

// NewKey creates a new random key.
func NewKey(kind KeyKind) Key {
	var b strings.Builder
	b.WriteString(keyPrefix + string(kind) + "_")
	// A byte below 248 (4 x 62) selects each character with the same probability; other bytes are
	// replaced.
	var buf [2 * randomLength]byte
	for n := 0; n < randomLength; {
		_, _ = rand.Read(buf[:]) // never fails: the runtime aborts instead
		for _, c := range buf {
			if c < 248 && n < randomLength {
				b.WriteByte(base62[c%62])
				n++
			}
		}
	}
	sum := keyChecksum(b.String())
	b.Write(sum[:])
	return Key{text: b.String(), kind: kind}
}

// ParseKey parses a key. It verifies form and checksum without a lookup, and fails with
// ErrMalformedKey.
func ParseKey(text string) (Key, error) {
	rest, ok := strings.CutPrefix(text, keyPrefix)
	if !ok {
		return Key{}, ErrMalformedKey
	}
	kind, rest, ok := strings.Cut(rest, "_")
	if !ok || len(rest) != randomLength+crcLength || KeyKind(kind) != TenantKey && KeyKind(kind) != OperatorKey {
		return Key{}, ErrMalformedKey
	}
	for i := range len(rest) {
		if !isBase62(rest[i]) {
			return Key{}, ErrMalformedKey
		}
	}
	sum := keyChecksum(text[:len(text)-crcLength])
	if string(sum[:]) != text[len(text)-crcLength:] {
		return Key{}, ErrMalformedKey
	}
	return Key{text: text, kind: KeyKind(kind)}, nil
}

func isBase62(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

// keyChecksum returns the CRC-32 as six digits of base62, highest first. 62^6 exceeds 2^32.
func keyChecksum(s string) (out [crcLength]byte) {
	// One byte at a time, without converting the string, so that a check does not allocate.
	sum := ^uint32(0)
	for i := range len(s) {
		sum = crc32.IEEETable[byte(sum)^s[i]] ^ sum>>8
	}
	sum = ^sum
	for i := crcLength - 1; i >= 0; i-- {
		out[i] = base62[sum%62]
		sum /= 62
	}
	return out
}

// Hash returns the SHA-256 of the key, by which it is stored and looked up.
func (k Key) Hash() [32]byte {
	var buf [64]byte // a key has 45 or 46 bytes
	return sha256.Sum256(append(buf[:0], k.text...))
}

// Kind returns the kind of the key.
func (k Key) Kind() KeyKind { return k.kind }

// Secret returns the key in clear text, to show it to its owner once.
func (k Key) Secret() string { return k.text }

// Last4 returns the last four characters, by which people identify keys.
func (k Key) Last4() string { return k.text[len(k.text)-4:] }

// String returns the masked key: its kind and last four characters.
func (k Key) String() string {
	if k.text == "" {
		return ""
	}
	return keyPrefix + string(k.kind) + "_..." + k.Last4()
}

// GoString masks the key for %#v.
func (k Key) GoString() string { return k.String() }

// LogValue masks the key in logs.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText masks the key in JSON and other text.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
