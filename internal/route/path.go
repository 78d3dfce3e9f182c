package route

import "bytes"

// Servers disagree about the meaning of some paths. An encoded slash or a backslash ends a segment
// for some servers, and some truncate a segment at a semicolon. Such a path is read in each of
// these ways. If the results match different templates, the limit would depend on the server behind
// the gateway, so the request is denied.
const (
	slashesDecoded = 1 << iota // %2F, %5C and \ separate segments
	parametersCut              // a segment ends at its semicolon
	allReadings    = slashesDecoded | parametersCut
)

// noTemplate means that no template matches.
const noTemplate = -1

// template returns the template of a path. ok is false for an invalid path.
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
		if !in.read(path, reading, c.longest) {
			return noTemplate, false
		}
		here := c.first(in, method)
		if here != noTemplate && found != noTemplate && here != found {
			return noTemplate, false
		}
		if here != noTemplate {
			found = here
		}
	}
	return found, true
}

// first returns the first template that matches the segments in in.
func (c *Compiled) first(in *Input, method []byte) int {
	if c.index != nil {
		return c.firstIndexed(in, method)
	}
	for i := range c.templates {
		if c.templates[i].matches(method, in.segments) {
			return i
		}
	}
	return noTemplate
}

// read splits a path into in.segments, each decoded once. It omits empty segments, because servers
// merge slashes, and most do not distinguish /orders from /orders/. A path with the segment . or ..
// is invalid: clients resolve these before they send, and servers disagree on the result. Of the
// segments behind the longest template, it keeps one.
func (in *Input) read(path []byte, reading, longest int) bool {
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
		if len(raw) == 0 || len(in.segments) > longest && raw[0] != '.' && raw[0] != '%' {
			continue
		}
		segment := in.decoded(raw)
		if string(segment) == "." || string(segment) == ".." {
			return false
		}
		if len(in.segments) <= longest {
			in.segments = append(in.segments, segment)
		}
	}
	return true
}

// separates reports whether a path continues with a separator, and sets its width in bytes.
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

// decoded replaces each %XX with its byte, if all are well-formed.
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

// decodeByte decodes the %XX at the beginning of b.
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
