// Package origin reads the origin of an HTTP request: its id, which logs contain, and the address
// of its client. Behind trusted proxies, that is the address that the proxies report. internal/api
// and internal/dashboard both use it.
//
// Example: 10.0.0.0/8 is trusted, and a request comes from 10.0.0.5 with X-Forwarded-For: 1.2.3.4,
// 203.0.113.9, 10.0.0.7. Addresses are read from the right: 10.0.0.7 is trusted, and 203.0.113.9 is
// not, so it is the client. What stands before it could be forged. From 198.51.100.1, the header
// does not count, and the client is 198.51.100.1.
package origin

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
)

const maxID = 128 // bytes

// RequestID returns the client's request id (the header X-Request-Id) if it is safe in logs and
// headers, and otherwise a new one.
func RequestID(r *http.Request) string {
	if given := r.Header["X-Request-Id"]; len(given) == 1 && HarmlessID(given[0]) {
		return given[0]
	}
	var text [32]byte
	return string(AppendID(text[:0]))
}

// AppendID appends a new request id, of 32 characters.
func AppendID(b []byte) []byte {
	var random [16]byte
	// An id must be unlikely to repeat. It need not be hard to guess.
	binary.LittleEndian.PutUint64(random[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(random[8:], rand.Uint64())
	return hex.AppendEncode(b, random[:])
}

// HarmlessID reports whether a client's request id is safe in logs and headers: 1 to 128 of A-Z,
// a-z, 0-9 and - _ . :
func HarmlessID[T string | []byte](id T) bool {
	if len(id) == 0 || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}
