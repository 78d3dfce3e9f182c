package route

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"weir/internal/limit"
)

// Gateways with Envoy's rate-limit protocol send descriptors: lists of entries, each with a key and
// a value, under a domain. A route whose slug is the domain decides about descriptors that do not
// name their subject. Its sources read the entries like headers: header:NAME, cookie:NAME and
// jwt:CLAIM use the entry with that key, ip uses the entry remote_address, and descriptor is all
// entries as one text. A template matches the entries path and method like a request or, if it
// begins with ?, the complete list of entries:
//
//	?message_type=marketing&to_number={}
//	?path=/api/{}
//	?user={}&...
//	?user=vip replaces base
//
// {} at the end of a value matches any text, even an empty one. ... matches any further entries.
// Special characters are percent-encoded as in a query, such as %26 for &. If a request has several
// descriptors, a template drops those whose resource it replaces.

// MaxEntries is the maximum number of entries that a template can match.
const MaxEntries = 16

// Entry is one entry of a descriptor.
type Entry struct{ Key, Value []byte }

// descriptorPattern is the pattern of a template for a list of entries.
type descriptorPattern struct {
	entries  []entryPattern
	rest     bool     // further entries match, too
	replaces []string // resources that it replaces
}

type entryPattern struct {
	key, value string
	open       bool // any text may follow the value
}

const (
	// DescriptorSource is the source with all entries of a descriptor as one text.
	DescriptorSource = "descriptor"

	replacesClause = " replaces "
	openValue      = "{}"
	restOfEntries  = "..."
)

// parseDescriptor parses a match that begins with ?.
func parseDescriptor(text string) (*descriptorPattern, error) {
	p := &descriptorPattern{}
	list, replaced, replaces := strings.Cut(text[1:], replacesClause)
	if replaces {
		for _, name := range strings.Split(replaced, ",") {
			name = strings.TrimSpace(name)
			if problem := limit.ValidName(name); problem != nil {
				return nil, limit.Wrong(problem.Fix, "replaces the resource %q, which %s", name, problem.Message)
			}
			p.replaces = append(p.replaces, name)
		}
	}
	parts := strings.Split(list, "&")
	for i, part := range parts {
		if part == restOfEntries && i == len(parts)-1 && i > 0 {
			p.rest = true
			break
		}
		key, value, has := strings.Cut(part, "=")
		value, open := strings.CutSuffix(value, openValue)
		if !has || key == "" || strings.ContainsAny(key+value, "{} ") {
			return nil, limit.Wrong("Correct the entry.", "has the entry %q: an entry is KEY=VALUE or KEY={}, with spaces and braces written as %%20, %%7B and %%7D", part)
		}
		e := entryPattern{open: open}
		var ok1, ok2 bool
		e.key, ok1 = unescape(key)
		e.value, ok2 = unescape(value)
		if !ok1 || !ok2 {
			return nil, limit.Wrong("Correct the entry.", "has the entry %q: %% must be followed by two hexadecimal digits", part)
		}
		p.entries = append(p.entries, e)
	}
	if len(p.entries) > MaxEntries {
		return nil, limit.Wrong("Remove entries.", "may have at most %d entries", MaxEntries)
	}
	if len(p.entries) == 0 {
		return nil, limit.Wrong("Add an entry.", "must have an entry, as ?user={}")
	}
	return p, nil
}

// unescape replaces each %XX by its byte.
func unescape(s string) (string, bool) {
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if len(s)-i < 3 {
			return "", false
		}
		decoded, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b = append(b, decoded[0])
		i += 2
	}
	return string(b), true
}

// text returns the same text for patterns that match the same entries.
func (p *descriptorPattern) text() string {
	var b []byte
	for _, e := range p.entries {
		b = appendEscaped(append(b, '&'), []byte(e.key))
		b = appendEscaped(append(b, '='), []byte(e.value))
		if e.open {
			b = append(b, openValue...)
		}
	}
	if p.rest {
		b = append(b, restOfEntries...)
	}
	return "?" + string(b)
}

func (p *descriptorPattern) matches(entries []Entry) bool {
	if len(entries) < len(p.entries) || len(entries) > len(p.entries) && !p.rest {
		return false
	}
	for i := range p.entries {
		e, got := &p.entries[i], &entries[i]
		if string(got.Key) != e.key || len(got.Value) < len(e.value) || string(got.Value[:len(e.value)]) != e.value ||
			!e.open && len(got.Value) != len(e.value) {
			return false
		}
	}
	return true
}

// descriptorTemplate returns the first template that matches the entries of a descriptor.
func (c *Compiled) descriptorTemplate(entries []Entry) int {
	for i := range c.templates {
		if p := c.templates[i].descriptor; p != nil && p.matches(entries) {
			return i
		}
	}
	return noTemplate
}

// Replaces returns the resources that a resource of the route replaces in the same request.
func (c *Compiled) Replaces(resource string) []string {
	for i := range c.templates {
		if t := &c.templates[i]; t.descriptor != nil && t.resource == resource {
			return t.descriptor.replaces
		}
	}
	return nil
}

// descriptorText returns all entries as one text, KEY=VALUE&KEY=VALUE. If the text is too long for
// a subject, it returns a hash, so that every descriptor has a valid text. The subject and all
// attributes of a route may have this source, so the text is built once.
func (in *Input) descriptorText() ([]byte, presence) {
	switch {
	case len(in.Entries) == 0:
		return nil, missing
	case in.descriptor == nil:
		in.descriptor = in.buildDescriptor()
	}
	return in.descriptor, there
}

func (in *Input) buildDescriptor() []byte {
	from := len(in.text)
	for i, e := range in.Entries {
		if i > 0 {
			in.text = append(in.text, '&')
		}
		in.text = appendEscaped(in.text, e.Key)
		in.text = appendEscaped(append(in.text, '='), e.Value)
	}
	if len(in.text)-from > limit.MaxNameBytes {
		sum := sha256.Sum256(in.text[from:])
		in.text = hex.AppendEncode(append(in.text[:from], "sha256:"...), sum[:])
	}
	return in.text[from:len(in.text):len(in.text)]
}

// appendEscaped appends s and escapes all but plain text as %XX, including separators, so that
// different lists of entries have different texts.
func appendEscaped(b, s []byte) []byte {
	for _, c := range s {
		switch {
		case c <= ' ' || c > '~' || c == '%' || c == '&' || c == '=' || c == '{' || c == '}' || c == '*':
			b = append(b, '%')
			b = hex.AppendEncode(b, []byte{c})
		default:
			b = append(b, c)
		}
	}
	return b
}

// Escape escapes a key or a value for a match.
func Escape(s string) string { return string(appendEscaped(nil, []byte(s))) }

// DomainSlug appends the slug of the route for a domain: the domain in lower case, with - for each
// character that a slug cannot have.
func DomainSlug(b, domain []byte) []byte {
	from := len(b)
	for _, c := range domain {
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case (c < 'a' || c > 'z') && (c < '0' || c > '9'):
			c = '-'
		}
		if b = append(b, c); len(b)-from == limit.MaxSlugBytes {
			return b
		}
	}
	return b
}

// bytes returns the approximate memory of the pattern.
func (p *descriptorPattern) bytes() int {
	n := 80
	for _, e := range p.entries {
		n += 48 + len(e.key) + len(e.value)
	}
	for _, r := range p.replaces {
		n += 32 + len(r)
	}
	return n
}
