package h2

import (
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// Head is the header list of a request. Its strings are valid for as long as the Call.
type Head struct {
	Method, Scheme, Path, Authority string
	// Fields are the other fields, in the order of their arrival. Names are in lower case.
	Fields []hpack.HeaderField
	// length is the declared length of the body; -1: not declared.
	length int64

	size      int  // of all fields, those that are missing included
	regular   bool // a field that is no pseudo-header was there
	seen      uint8
	malformed bool
	truncated bool // larger than the limit; the rest is missing
}

// Pseudo-headers that were there, one bit each.
const (
	seenMethod = 1 << iota
	seenScheme
	seenPath
	seenAuthority
)

// Get returns the value of a field, the last one if there are several, and "" without one.
func (h *Head) Get(name string) string {
	for i := len(h.Fields) - 1; i >= 0; i-- {
		if h.Fields[i].Name == name {
			return h.Fields[i].Value
		}
	}
	return ""
}

func (h *Head) reset() {
	clear(h.Fields) // they may contain keys
	*h = Head{Fields: h.Fields[:0], length: -1}
}

// maxFields is the number of fields of a request, besides those that HTTP/2 defines. A map of many
// short ones takes much more memory than their bytes.
const maxFields = 128

// take adds a field.
func (h *Head) take(f hpack.HeaderField, limit int) {
	h.size += int(f.Size())
	if h.malformed || h.truncated {
		return
	}
	if h.size > limit || len(h.Fields) == maxFields {
		h.truncated = true
		return
	}
	if !httpguts.ValidHeaderFieldValue(f.Value) {
		h.malformed = true
		return
	}
	if strings.HasPrefix(f.Name, ":") {
		h.malformed = h.regular || !h.takePseudo(f)
		return
	}
	h.regular = true
	h.malformed = !h.takeRegular(f)
}

func (h *Head) takePseudo(f hpack.HeaderField) (ok bool) {
	var bit uint8
	switch f.Name {
	case ":method":
		bit, h.Method = seenMethod, f.Value
	case ":scheme":
		bit, h.Scheme = seenScheme, f.Value
	case ":path":
		bit, h.Path = seenPath, f.Value
	case ":authority":
		bit, h.Authority = seenAuthority, f.Value
	default: // also extended CONNECT, which is not offered
		return false
	}
	ok = h.seen&bit == 0
	h.seen |= bit
	return ok
}

func (h *Head) takeRegular(f hpack.HeaderField) (ok bool) {
	if !validName(f.Name) {
		return false
	}
	switch f.Name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return false // they belong to HTTP/1.1
	case "te":
		if f.Value != "trailers" {
			return false
		}
	case "content-length":
		n, err := strconv.ParseUint(f.Value, 10, 63)
		if err != nil || h.length >= 0 && h.length != int64(n) {
			return false
		}
		h.length = int64(n)
	}
	h.Fields = append(h.Fields, f)
	return true
}

func validName(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if c >= 'A' && c <= 'Z' || !httpguts.IsTokenRune(rune(c)) {
			return false
		}
	}
	return true
}

// request reports whether the list is the beginning of a request.
func (h *Head) request() bool {
	const required = seenMethod | seenScheme | seenPath
	return !h.malformed && h.seen&required == required && h.Method != "" && h.Scheme != "" && h.Path != ""
}

// trailer reports whether the list may end a request.
func (h *Head) trailer() bool { return !h.malformed && h.seen == 0 }
