package api

import (
	"bytes"

	"weir/internal/origin"
)

// The lane's form of a request to /v1/authorize. A gateway forwards its customer's headers, so
// unknown names are accepted here, but not names with a meaning in HTTP.

// laneMethods are the methods of the lane's form.
var laneMethods = [][]byte{
	[]byte("GET " + authorizePath), []byte("HEAD " + authorizePath), []byte("POST " + authorizePath), []byte("PUT " + authorizePath),
	[]byte("PATCH " + authorizePath), []byte("DELETE " + authorizePath), []byte("OPTIONS " + authorizePath),
}

const (
	laneVersion   = " HTTP/1.1\r\n"
	laneKey       = laneAuthorization // the bit of the API key
	laneAskNeeded = laneHost | laneKey
)

// laneAsk parses the first line of a request to /v1/authorize, or to a route below it.
func laneAsk(b []byte) (rest, method, path []byte, verdict laneVerdict) {
	verdict = laneOther
	for _, start := range laneMethods {
		if !bytes.HasPrefix(b, start) {
			if len(b) < len(start) && bytes.HasPrefix(start, b) {
				verdict = lanePartial
			}
			continue
		}
		rest, method = b[len(start):], start[:len(start)-len(authorizePath)-1]
		path, rest, verdict = lanePath(rest)
		switch {
		case verdict != laneCheck:
			return nil, nil, nil, verdict
		case bytes.HasPrefix(rest, []byte(laneVersion)):
			return rest[len(laneVersion):], method, path, laneCheck
		case len(rest) < len(laneVersion) && bytes.HasPrefix([]byte(laneVersion), rest):
			return nil, nil, nil, lanePartial
		}
		return nil, nil, nil, laneOther
	}
	return nil, nil, nil, verdict
}

// lanePath parses what follows /v1/authorize: nothing, or the name of a route and perhaps the URI
// of the gateway's customer. The customer may write a URI that net/http does not accept.
func lanePath(b []byte) (path, rest []byte, verdict laneVerdict) {
	if len(b) == 0 {
		return nil, nil, lanePartial
	}
	if b[0] != '/' {
		return nil, b, laneCheck
	}
	for i, c := range b {
		if c == ' ' {
			return b[:i], b[i:], laneCheck
		}
		if c < ' ' || c > '~' {
			return nil, nil, laneOther
		}
	}
	return nil, nil, lanePartial
}

// readLaneAsk looks for a request to /v1/authorize at the beginning of b, as readLaneHead does for
// checks. rest follows the first line.
func readLaneAsk(b, rest, path []byte) (h laneHead, verdict laneVerdict) {
	h.authorize, h.deniedStatus, h.lines, h.path = true, 429, rest, path
	var seen uint
	for {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			return h, lanePartial
		}
		if end == 1 && rest[0] == '\r' {
			h.lines = h.lines[:len(h.lines)-len(rest)]
			h.size = len(b) - len(rest) + 2
			break
		}
		if end < 1 || rest[end-1] != '\r' {
			return h, laneOther
		}
		name, value, ok := laneAskField(rest[:end-1])
		if !ok {
			return h, laneOther
		}
		bit := laneAskHeader(name)
		if bit == laneDeniedStatus && path != nil { // the route defines that
			bit = 0
		}
		if bit < 0 || seen&uint(bit) != 0 || !h.takeAsk(bit, value) {
			return h, laneOther
		}
		seen |= uint(bit)
		rest = rest[end+1:]
	}
	if seen&laneAskNeeded != laneAskNeeded {
		return h, laneOther
	}
	return h, laneCheck
}

// laneAskField splits a header line into name and value. Values may contain bytes beyond ASCII,
// which net/http also accepts.
func laneAskField(line []byte) (name, value []byte, ok bool) {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 {
		return nil, nil, false
	}
	name, value = line[:colon], line[colon+1:]
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
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
		if c < ' ' || c == 0x7f {
			return nil, nil, false
		}
	}
	return name, value, true
}

// laneAskHeader returns the bit of a header that may appear only once, 0 for a header that has no
// meaning here or is read later, and -1 for a header that changes the framing of HTTP.
func laneAskHeader(name []byte) int {
	switch len(name) {
	case 2:
		if is(name, "te") {
			return -1
		}
	case 4:
		if is(name, "host") {
			return laneHost
		}
	case 6:
		if is(name, "expect") {
			return -1
		}
	case 7:
		if is(name, "upgrade") || is(name, "trailer") {
			return -1
		}
	case 8:
		if is(name, "weir-key") {
			return laneKey
		}
	case 10:
		if is(name, "connection") {
			return laneConnection
		}
	case 12:
		if is(name, "x-request-id") {
			return laneRequestID
		}
	case 14:
		if is(name, "content-length") {
			return laneContentLength
		}
		if is(name, "http2-settings") {
			return -1
		}
	case 17:
		if is(name, "transfer-encoding") {
			return -1
		}
	case 18:
		if is(name, "weir-denied-status") {
			return laneDeniedStatus
		}
	}
	return 0
}

// takeAsk records a header, and reports whether the lane can continue.
func (h *laneHead) takeAsk(bit int, value []byte) bool {
	switch bit {
	case laneHost:
		h.host = value
		return laneHostname(value)
	case laneKey:
		h.key = value
		return len(value) > 0
	case laneContentLength:
		return len(value) == 1 && value[0] == '0'
	case laneRequestID:
		h.requestID = value
		return origin.HarmlessID(value)
	case laneDeniedStatus:
		switch string(value) {
		case "403":
			h.deniedStatus = 403
		case "429":
		default:
			return false
		}
	case laneConnection:
		return len(value) == len("keep-alive") && is(value, "keep-alive")
	}
	return true
}
