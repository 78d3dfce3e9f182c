package route

import "bytes"

// Servers do not agree on what some paths mean. An encoded slash ends a segment for some and
// not for others, as does a backslash; some cut a segment at its semicolon. A path that has one
// of these is read in every way. Where that leads to two templates, a limit would depend on the
// server behind the gateway, and the request is denied.
const (
	slashesDecoded = 1 << iota // %2F, %5C and \ separate segments
	parametersCut              // a segment ends at its semicolon
	allReadings    = slashesDecoded | parametersCut
)

// noTemplate: no template matches.
const noTemplate = -1

// template finds the template of a path; ok is false for a path that cannot be used.
func (c *Compiled) template(in *Input, method, path []byte) (found int, ok bool) {
	features := 0
	for i := 0; i < len(path); i++ {
		switch path[i] {
		case '\\':
			features |= slashesDecoded
		case ';':
			features |= parametersCut
		case '#', 0:
			return noTemplate, false
		case '%':
			if decoded, valid := decodeByte(path[i:]); !valid || decoded == 0 {
				return noTemplate, false
			} else if decoded == '/' || decoded == '\\' {
				features |= slashesDecoded
			}
			i += 2
		}
	}
	found = noTemplate
	for reading := 0; reading <= allReadings; reading++ {
		if reading&^features != 0 {
			continue
		}
		if !in.read(path, reading) {
			return noTemplate, false
		}
		here := c.first(method, in.segments)
		if here != noTemplate && found != noTemplate && here != found {
			return noTemplate, false
		}
		if here != noTemplate {
			found = here
		}
	}
	return found, true
}

func (c *Compiled) first(method []byte, path [][]byte) int {
	for i := range c.templates {
		if c.templates[i].matches(method, path) {
			return i
		}
	}
	return noTemplate
}

// read splits a path into in.segments, each decoded once. Empty segments are left out: servers
// merge slashes, and hardly one tells /orders from /orders/. A path with the segment . or ..
// cannot be used: clients resolve those before they send, and servers do not agree on what is
// left of them.
func (in *Input) read(path []byte, reading int) bool {
	in.segments = in.segments[:0]
	for from, i := 0, 0; i <= len(path); i++ {
		width := 1
		if i < len(path) && !separates(path[i:], reading, &width) {
			continue
		}
		raw := path[from:i]
		i += width - 1
		from = i + 1
		if reading&parametersCut != 0 {
			raw, _, _ = bytes.Cut(raw, []byte{';'})
		}
		segment := in.decoded(raw)
		if string(segment) == "." || string(segment) == ".." {
			return false
		}
		if len(segment) > 0 {
			in.segments = append(in.segments, segment)
		}
	}
	return true
}

// separates reports whether a path continues with a separator, and how many bytes that takes.
func separates(path []byte, reading int, width *int) bool {
	if path[0] == '/' {
		return true
	}
	if reading&slashesDecoded == 0 {
		return false
	}
	if path[0] == '\\' {
		return true
	}
	if path[0] != '%' {
		return false
	}
	*width = 3
	decoded, _ := decodeByte(path)
	return decoded == '/' || decoded == '\\'
}

// decoded replaces each %XX by its byte, where all are well-formed.
func (in *Input) decoded(raw []byte) []byte {
	if bytes.IndexByte(raw, '%') < 0 {
		return raw
	}
	from := len(in.text)
	for i := 0; i < len(raw); i++ {
		b, valid := decodeByte(raw[i:])
		if !valid {
			b = raw[i]
		} else {
			i += 2
		}
		in.text = append(in.text, b)
	}
	return in.text[from:len(in.text):len(in.text)]
}

// decodeByte decodes the %XX with which b begins.
func decodeByte(b []byte) (c byte, ok bool) {
	if len(b) < 3 || b[0] != '%' {
		return 0, false
	}
	high, ok1 := hexDigit(b[1])
	low, ok2 := hexDigit(b[2])
	return high<<4 | low, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
