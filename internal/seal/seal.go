// Package seal encrypts the few secrets that the service must read back, such as the signing
// secrets of webhooks, so that a copy of the database does not reveal them.
//
// A Ring holds one key or several. The first key encrypts, and all of them decrypt: to rotate, put
// a new key before the old one, encrypt everything again, and remove the old one.
//
// Example: a Ring of the keys k1 seals "whsec_1" for the place "endpoint 7". The text has 5 bytes
// that name the format and k1, 24 of a nonce, 7 of the secret and 16 of a tag. A Ring of k2 and k1
// opens it for "endpoint 7" and reports that it is not Current. For "endpoint 8" it is ErrDamaged.
// A Ring of k2 alone returns ErrUnknownKey.
package seal

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"
)

// KeyBytes is the length of a key.
const KeyBytes = chacha20poly1305.KeySize

// A sealed text is: one byte for this format, the first bytes of the SHA-256 of the key, a random
// nonce, and the ciphertext with its tag.
const (
	format  = 1
	idBytes = 4
	head    = 1 + idBytes
)

var (
	// ErrNoKey: the ring has no key, so nothing can be encrypted or decrypted.
	ErrNoKey = errors.New("no encryption key is set")
	// ErrUnknownKey: the text was encrypted with a key that the ring does not have.
	ErrUnknownKey = errors.New("encrypted with a key that is not set")
	// ErrDamaged: the text is not one of Seal's, or was changed or moved to another place.
	ErrDamaged = errors.New("the encrypted text is damaged or belongs to another object")
)

// Ring encrypts with its first key and decrypts with all of its keys. The nil Ring has no key. It
// can be used concurrently.
type Ring struct{ keys []key }

type key struct {
	id   [idBytes]byte
	aead cipher.AEAD
}

// NewKey returns a new random key as Parse reads it.
func NewKey() string {
	k := make([]byte, KeyBytes)
	_, _ = rand.Read(k) // does not fail
	return base64.StdEncoding.EncodeToString(k)
}

// Parse reads keys: each 32 bytes in base64, separated by commas. It returns nil for "". Its errors
// do not show the keys.
func Parse(text string) (*Ring, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	r := &Ring{}
	for i, part := range strings.Split(text, ",") {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(part))
		if err != nil || len(raw) != KeyBytes {
			return nil, fmt.Errorf("key %d must be %d bytes in base64, as openssl rand -base64 %d prints", i+1, KeyBytes, KeyBytes)
		}
		aead, err := chacha20poly1305.NewX(raw)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		sum := sha256.Sum256(raw)
		k := key{aead: aead}
		copy(k.id[:], sum[:])
		for _, other := range r.keys {
			if other.id == k.id {
				return nil, fmt.Errorf("key %d is listed twice", i+1)
			}
		}
		r.keys = append(r.keys, k)
	}
	return r, nil
}

// Seal encrypts text for one place, such as "endpoint 123, signing secrets": it can be opened only
// with the same place, so that a ciphertext cannot be moved to another row. Error: ErrNoKey.
func (r *Ring) Seal(text []byte, place string) ([]byte, error) {
	if r == nil {
		return nil, ErrNoKey
	}
	k := r.keys[0]
	out := make([]byte, head+chacha20poly1305.NonceSizeX, head+chacha20poly1305.NonceSizeX+len(text)+k.aead.Overhead())
	out[0] = format
	copy(out[1:], k.id[:])
	_, _ = rand.Read(out[head:]) // does not fail
	return k.aead.Seal(out, out[head:], text, []byte(place)), nil
}

// Open decrypts what Seal returned for the same place. Errors: ErrNoKey, ErrUnknownKey, ErrDamaged.
func (r *Ring) Open(sealed []byte, place string) ([]byte, error) {
	if r == nil {
		return nil, ErrNoKey
	}
	if len(sealed) < head+chacha20poly1305.NonceSizeX || sealed[0] != format {
		return nil, ErrDamaged
	}
	for _, k := range r.keys {
		if !bytes.Equal(k.id[:], sealed[1:head]) {
			continue
		}
		text, err := k.aead.Open(nil, sealed[head:head+chacha20poly1305.NonceSizeX], sealed[head+chacha20poly1305.NonceSizeX:], []byte(place))
		if err != nil {
			return nil, ErrDamaged
		}
		return text, nil
	}
	return nil, ErrUnknownKey
}

// Current reports whether the text was encrypted with the first key.
func (r *Ring) Current(sealed []byte) bool {
	return r != nil && len(sealed) >= head && sealed[0] == format && bytes.Equal(r.keys[0].id[:], sealed[1:head])
}
