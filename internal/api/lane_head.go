package api

import (
	"bytes"
	"errors"
	"io"

	"weir/internal/origin"
)

// laneVerdict is the lane's classification of the bytes that it has read.
type laneVerdict uint8

const (
	laneCheck   laneVerdict = iota // a complete request in the lane's form
	lanePartial                    // the beginning of one
	laneOther                      // anything else
	laneGone                       // the connection has ended
)

// laneHead is a request in the lane's form, as parts of the connection's buffer.
type laneHead struct {
	key          []byte // the API key
	requestID    []byte // of the caller; nil: none
	host         []byte
	body         []byte
	deniedStatus int

	idempotencyKey []byte // nil: none
	forwarded      bool   // it has X-Forwarded-For

	size int // of the whole request

	authorize bool        // a request to /v1/authorize
	withHead  bool        // its method is HEAD: the answer has no body
	lines     headerLines // its headers
	method    []byte
	path      []byte // after /v1/authorize, with the query; nil: nothing follows
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) }

// laneLines are the first lines of requests in the lane's form.
var laneLines = [][]byte{[]byte("POST /v1/check HTTP/1.1\r\n"), []byte("POST /check HTTP/1.1\r\n")}

// The headers of a request, one bit for each. Each may appear only once.
const (
	laneHost = 1 << iota
	laneAuthorization
	laneContentType
	laneContentLength
	laneRequestID
	laneDeniedStatus
	laneConnection
	laneIdempotencyKey
	laneForwarded

	laneNeeded = laneHost | laneAuthorization | laneContentType | laneContentLength
)

// readLaneHead looks for a request in the lane's form at the beginning of b: lines that end in CR
// LF, headers that are known here or have no meaning for a check, values of visible ASCII, and a
// body with the length of its only Content-Length. It never accepts what net/http would refuse or
// read differently. If in any way uncertain, it returns laneOther.
func readLaneHead(b []byte) (h laneHead, verdict laneVerdict) {
	rest, verdict := laneLine(b)
	if verdict == laneOther || verdict == lanePartial {
		rest, method, path, askVerdict := laneAsk(b)
		switch {
		case askVerdict == laneCheck:
			h, verdict = readLaneAsk(b, rest, path)
			h.withHead, h.method = string(method) == "HEAD", method
		case askVerdict == lanePartial:
			verdict = lanePartial
		}
		return h, verdict
	}
	h.deniedStatus = 429
	var seen uint
	length := 0
	for {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			return h, lanePartial
		}
		if end == 1 && rest[0] == '\r' {
			rest = rest[2:]
			break
		}
		if end < 1 || rest[end-1] != '\r' {
			return h, laneOther
		}
		name, value, ok := laneField(rest[:end-1])
		if !ok {
			return h, laneOther
		}
		bit := laneHeader(name)
		if bit < 0 || seen&uint(bit) != 0 || !h.take(bit, value, &length) {
			return h, laneOther
		}
		seen |= uint(bit)
		rest = rest[end+1:]
	}
	if seen&laneNeeded != laneNeeded {
		return h, laneOther
	}
	if len(rest) < length {
		return h, lanePartial
	}
	h.body = rest[:length]
	h.size = len(b) - len(rest) + length
	return h, laneCheck
}

// laneLine parses the first line.
func laneLine(b []byte) (rest []byte, verdict laneVerdict) {
	verdict = laneOther
	for _, line := range laneLines {
		if bytes.HasPrefix(b, line) {
			return b[len(line):], laneCheck
		}
		if len(b) < len(line) && bytes.HasPrefix(line, b) {
			verdict = lanePartial
		}
	}
	return nil, verdict
}

// laneField splits a header line into name and value.
func laneField(line []byte) (name, value []byte, ok bool) {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 {
		return nil, nil, false
	}
	name, value = line[:colon], line[colon+1:]
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-') {
			return nil, nil, false
		}
	}
	for len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	if len(value) > 0 && value[len(value)-1] == ' ' {
		return nil, nil, false
	}
	for _, c := range value {
		if c < ' ' || c > '~' {
			return nil, nil, false
		}
	}
	return name, value, true
}

// laneHeader returns the bit of a header, 0 for one that has no meaning for a check, and -1 for an
// unknown one.
func laneHeader[T string | []byte](name T) int {
	switch len(name) {
	case 4:
		if is(name, "host") {
			return laneHost
		}
	case 6:
		if is(name, "accept") {
			return 0
		}
	case 10:
		if is(name, "connection") {
			return laneConnection
		}
		if is(name, "user-agent") || is(name, "tracestate") {
			return 0
		}
	case 11:
		if is(name, "traceparent") {
			return 0
		}
	case 12:
		if is(name, "content-type") {
			return laneContentType
		}
		if is(name, "x-request-id") {
			return laneRequestID
		}
	case 13:
		if is(name, "authorization") {
			return laneAuthorization
		}
	case 14:
		if is(name, "content-length") {
			return laneContentLength
		}
	case 15:
		if is(name, "idempotency-key") {
			return laneIdempotencyKey
		}
		if is(name, "accept-encoding") || is(name, "accept-language") {
			return 0
		}
		if is(name, "x-forwarded-for") {
			return laneForwarded
		}
	case 16:
		if is(name, "x-forwarded-host") || is(name, "x-forwarded-port") {
			return 0
		}
	case 17:
		if is(name, "x-forwarded-proto") {
			return 0
		}
	case 18:
		if is(name, "weir-denied-status") {
			return laneDeniedStatus
		}
	}
	return -1
}

// is reports whether a name, which has the right length, is equal to lower.
func is[T string | []byte](name T, lower string) bool {
	for i := range len(name) {
		c := name[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// take records a header, and reports whether the lane can continue.
func (h *laneHead) take(bit int, value []byte, length *int) bool {
	switch bit {
	case laneHost:
		h.host = value
		return laneHostname(value)
	case laneAuthorization:
		var ok bool
		h.key, ok = laneBearer(value)
		return ok
	case laneContentType:
		return string(value) == "application/json"
	case laneContentLength:
		if len(value) < 1 || len(value) > 4 {
			return false
		}
		for _, c := range value {
			if c < '0' || c > '9' {
				return false
			}
			*length = *length*10 + int(c-'0')
		}
	case laneRequestID:
		h.requestID = value
		return origin.HarmlessID(value)
	case laneIdempotencyKey:
		h.idempotencyKey = value
		return validCheckKey(value)
	case laneDeniedStatus:
		var ok bool
		h.deniedStatus, ok = laneDenied(value)
		return ok
	case laneForwarded:
		h.forwarded = true
	case laneConnection:
		return len(value) == len("keep-alive") && is(value, "keep-alive")
	}
	return true
}

// laneBearer returns the key in the value of Authorization.
func laneBearer[T string | []byte](value T) (key T, ok bool) {
	const scheme = "bearer "
	if len(value) <= len(scheme) || !is(value[:len(scheme)], scheme) {
		return key, false
	}
	key = value[len(scheme):]
	for i := range len(key) {
		if key[i] == ' ' {
			return key, false
		}
	}
	return key, true
}

// laneDenied returns the status of a denial, by the value of Weir-Denied-Status.
func laneDenied[T string | []byte](value T) (status int, ok bool) {
	switch string(value) {
	case "200":
		return 200, true
	case "429":
		return 429, true
	}
	return 0, false
}

// laneHostname reports whether a Host has the plain form of names and addresses.
func laneHostname[T string | []byte](value T) bool {
	for i := range len(value) {
		c := value[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == ':' || c == '[' || c == ']' || c == '_') {
			return false
		}
	}
	return len(value) > 0
}
