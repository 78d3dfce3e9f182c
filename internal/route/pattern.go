package route

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"weir/internal/limit"
)

// pattern is the compiled match of a template: "GET /orders/{id}/items", "/files/{path...}".
type pattern struct {
	method   string    // in upper case; "" for any
	segments []segment // nil for a template of a route with an index
	rest     bool      // further segments match, too
	// descriptor is the pattern of a match that begins with ?; nil for a pattern of requests.
	descriptor *descriptorPattern
}

type segment struct {
	literal string // in lower case; "" for any text except the empty one
}

const msgPattern = "must be a path such as /orders/{id}, with a method before it or without, or entries of a descriptor such as ?user={}"

// parsePattern parses the match of a template.
func parsePattern(text string) (p pattern, err error) {
	if text == "" || len(text) > MaxMatchBytes || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return p, limit.MustBe("1 to %d bytes of UTF-8 without control characters", MaxMatchBytes)
	}
	if text[0] == '?' {
		p.descriptor, err = parseDescriptor(text)
		return p, err
	}
	path := text
	if path[0] != '/' {
		var spaced bool
		if p.method, path, spaced = strings.Cut(text, " "); !spaced || !validMethod(p.method) || !strings.HasPrefix(path, "/") {
			return p, &limit.Problem{Message: msgPattern, Fix: "Correct the pattern."}
		}
	}
	if path == "/" {
		return p, nil
	}
	parts := strings.Split(path[1:], "/")
	for i, part := range parts {
		name, isParameter := strings.CutPrefix(part, "{")
		if !isParameter {
			if err := checkLiteral(part); err != nil {
				return p, err
			}
			p.segments = append(p.segments, segment{literal: lower(part)})
			continue
		}
		name, closed := strings.CutSuffix(name, "}")
		name, rest := strings.CutSuffix(name, "...")
		if !closed || !validToken(name, "_") {
			return p, limit.Wrong("Correct the segment.", "has the segment %q: a parameter is {NAME}, with 1 to 64 of A-Z, a-z, 0-9 and _", part)
		}
		if rest {
			if i < len(parts)-1 {
				return p, limit.Wrong("Correct the segment.", "has segments after %q, which matches all that follow", part)
			}
			p.rest = true
			break
		}
		p.segments = append(p.segments, segment{})
	}
	return p, nil
}

func validMethod(s string) bool {
	for i := range len(s) {
		if (s[i] < 'A' || s[i] > 'Z') && s[i] != '-' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 32
}

// checkLiteral refuses a segment that no decoded path can have.
func checkLiteral(s string) error {
	switch {
	case s == "":
		return limit.Wrong("Remove them.", "must not have empty segments, nor / at its end: paths are matched without them")
	case s == "." || s == "..":
		return limit.Wrong("Remove them.", "must not have the segments . and ..")
	case strings.ContainsAny(s, "{}"):
		return limit.Wrong("Correct the segment.", "has the segment %q: a parameter is a segment of its own", s)
	case strings.ContainsAny(s, `*?#%;\ `):
		return limit.Wrong("Correct the segment.", "has the segment %q: segments are written decoded, without * ? # %% ; \\ and spaces", s)
	}
	return nil
}

// text returns the same text for patterns that match the same requests.
func (p pattern) text() string {
	if p.descriptor != nil {
		return p.descriptor.text()
	}
	var b strings.Builder
	b.WriteString(p.method)
	for _, s := range p.segments {
		b.WriteByte('/')
		b.WriteString(s.literal)
	}
	if p.rest {
		b.WriteString("/...")
	}
	return b.String()
}

// matches reports whether the pattern matches a request.
func (p *pattern) matches(method []byte, path [][]byte) bool {
	if p.descriptor != nil || len(path) < len(p.segments) || len(path) > len(p.segments) && !p.rest {
		return false
	}
	if !p.takes(method) {
		return false
	}
	for i := range p.segments {
		if literal := p.segments[i].literal; literal != "" && !equalLower(path[i], literal) {
			return false
		}
	}
	return true
}

// takes reports whether the pattern matches a method. GET also matches HEAD, which has the same
// cost.
func (p *pattern) takes(method []byte) bool {
	return p.method == "" || equalUpper(method, p.method) || p.method == "GET" && equalUpper(method, "HEAD")
}

// lower converts A to Z to lower case, and keeps all other bytes.
func lower(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}, s)
}

// equalLower reports whether b equals s, which is in lower case, ignoring the case of A to Z.
func equalLower(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != s[i] {
			return false
		}
	}
	return true
}

func equalUpper(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i, c := range b {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != s[i] {
			return false
		}
	}
	return true
}

// pathOf returns the path of a request target. ok is false for a target without a path, such as "*"
// and "host:443".
func pathOf(target []byte) (path []byte, ok bool) {
	if end := bytes.IndexByte(target, '?'); end >= 0 {
		target = target[:end]
	}
	if len(target) > 0 && target[0] == '/' {
		return target, true
	}
	_, authority, absolute := bytes.Cut(target, []byte("://"))
	if !absolute {
		return nil, false
	}
	if slash := bytes.IndexByte(authority, '/'); slash >= 0 {
		return authority[slash:], true
	}
	return []byte("/"), true
}
