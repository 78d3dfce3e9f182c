package api

import (
	"net/http"
	"unicode/utf16"
	"unicode/utf8"
)

// The JSON of RFC 8259 for decoder: only UTF-8, no duplicate members, limited depth.

// peek returns the next byte that is not white space, without consuming it; 0 at the end.
func (d *decoder) peek() byte {
	for d.pos < len(d.body) {
		switch c := d.body[d.pos]; c {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return c
		}
	}
	return 0
}

// malformed returns the problem of the body at the current byte.
func (d *decoder) malformed(expected string) *Problem {
	if d.pos >= len(d.body) {
		return newProblem(http.StatusBadRequest, codeMalformedJSON, "The body ends where there should be "+expected+".")
	}
	return newProblem(http.StatusBadRequest, codeMalformedJSON, "At byte "+itoa(int64(d.pos))+" of the body there should be "+expected+".")
}

// open advances to the { at the beginning of the document.
func (d *decoder) open() *Problem {
	if d.peek() == '{' {
		return nil
	}
	if checkJSON(d.body) == nil { // well-formed, but not an object
		return invalid(wrongField("", notObject))
	}
	return d.malformed("a JSON object")
}

// end makes sure that nothing follows the document.
func (d *decoder) end() *Problem {
	d.peek()
	if d.pos < len(d.body) {
		return d.malformed("nothing more")
	}
	return nil
}

// member advances to the value of the next member of an object and returns its name, or to the end
// of the object.
func (d *decoder) member(first bool) (name []byte, done bool, p *Problem) {
	c := d.peek()
	if c == '}' {
		d.pos++
		return nil, true, nil
	}
	if !first {
		if c != ',' {
			return nil, false, d.malformed("a comma or }")
		}
		d.pos++
		c = d.peek()
	}
	if c != '"' {
		return nil, false, d.malformed("the name of a member")
	}
	if name, _, p = d.str(); p != nil {
		return nil, false, p
	}
	if d.peek() != ':' {
		return nil, false, d.malformed("a colon")
	}
	d.pos++
	d.peek()
	return name, false, nil
}

// element advances to the next element of a list, or to the end of the list.
func (d *decoder) element(first bool) (done bool, p *Problem) {
	c := d.peek()
	if c == ']' && first {
		d.pos++
		return true, nil
	}
	if first {
		return false, nil
	}
	switch c {
	case ']':
		d.pos++
		return true, nil
	case ',':
		d.pos++
		d.peek()
		return false, nil
	}
	return false, d.malformed("a comma or ]")
}

// skip reads any value at this depth and discards it. It is used only for values that will be
// refused, but it is as strict as the rest: malformed JSON must never be reported as an invalid
// value.
func (d *decoder) skip(depth int) *Problem {
	switch c := d.peek(); c {
	case '"':
		_, _, p := d.str()
		return p
	case 't':
		return d.literal("true")
	case 'f':
		return d.literal("false")
	case 'n':
		return d.literal("null")
	case '{', '[':
		if depth++; depth > maxCheckDepth {
			return d.malformed("no deeper nesting: it ends at " + itoa(maxCheckDepth) + " levels")
		}
		d.pos++
		if c == '{' {
			return d.skipObject(depth)
		}
		return d.skipList(depth)
	default:
		_, p := d.number()
		return p
	}
}

func (d *decoder) skipObject(depth int) *Problem {
	names := make(map[string]bool)
	for first := true; ; first = false {
		name, done, p := d.member(first)
		if p != nil || done {
			return p
		}
		if names[string(name)] {
			return newProblem(http.StatusBadRequest, codeDuplicateField, "An object inside the body names \""+pointerToken(name)+"\" twice.")
		}
		names[string(name)] = true
		if p := d.skip(depth); p != nil {
			return p
		}
	}
}

func (d *decoder) skipList(depth int) *Problem {
	for first := true; ; first = false {
		done, p := d.element(first)
		if p != nil || done {
			return p
		}
		if p := d.skip(depth); p != nil {
			return p
		}
	}
}

func (d *decoder) literal(word string) *Problem {
	if len(d.body)-d.pos < len(word) || string(d.body[d.pos:d.pos+len(word)]) != word {
		return d.malformed("a JSON value")
	}
	d.pos += len(word)
	return nil
}

// number reads a number and returns its text.
func (d *decoder) number() ([]byte, *Problem) {
	from := d.pos
	if d.at('-') {
		d.pos++
	}
	switch {
	case d.at('0'):
		d.pos++
	case !d.digits():
		return nil, d.malformed("a JSON value")
	}
	if d.at('.') {
		d.pos++
		if !d.digits() {
			return nil, d.malformed("a digit")
		}
	}
	if d.at('e') || d.at('E') {
		d.pos++
		if d.at('+') || d.at('-') {
			d.pos++
		}
		if !d.digits() {
			return nil, d.malformed("a digit")
		}
	}
	return d.body[from:d.pos], nil
}

func (d *decoder) at(c byte) bool { return d.pos < len(d.body) && d.body[d.pos] == c }

// digits reads digits and reports whether there was at least one.
func (d *decoder) digits() bool {
	from := d.pos
	for d.pos < len(d.body) && d.body[d.pos] >= '0' && d.body[d.pos] <= '9' {
		d.pos++
	}
	return d.pos > from
}

// str reads a string and returns it without escapes: a part of the body if it has no escapes,
// otherwise a part of text. plain means that it is ASCII without control characters.
func (d *decoder) str() (s []byte, plain bool, p *Problem) {
	d.pos++ // "
	from := d.pos
	plain = true
	for d.pos < len(d.body) {
		switch c := d.body[d.pos]; {
		case c == '"':
			s = d.body[from:d.pos]
			if !plain && !utf8.Valid(s) {
				d.pos = from
				return nil, false, d.malformed("a string of valid UTF-8")
			}
			d.pos++
			return s, plain, nil
		case c == '\\':
			return d.escapedStr(from)
		case c < ' ':
			return nil, false, d.malformed("no control character: in a string it must be escaped")
		case c >= 0x7f:
			plain = false
		}
		d.pos++
	}
	return nil, false, d.malformed("the end of a string")
}

// escapedStr continues at the first escape of a string that began at from.
func (d *decoder) escapedStr(from int) (s []byte, plain bool, p *Problem) {
	start := len(d.text)
	d.text = append(d.text, d.body[from:d.pos]...)
	for d.pos < len(d.body) {
		switch c := d.body[d.pos]; {
		case c == '"':
			s = d.text[start:len(d.text):len(d.text)]
			if !utf8.Valid(s) {
				d.pos = from
				return nil, false, d.malformed("a string of valid UTF-8")
			}
			d.pos++
			return s, false, nil
		case c == '\\':
			r, p := d.escape()
			if p != nil {
				return nil, false, p
			}
			d.text = utf8.AppendRune(d.text, r)
		case c < ' ':
			return nil, false, d.malformed("no control character: in a string it must be escaped")
		default:
			d.text = append(d.text, c)
			d.pos++
		}
	}
	return nil, false, d.malformed("the end of a string")
}

// escape reads one escape sequence, or a pair of surrogates.
func (d *decoder) escape() (rune, *Problem) {
	if d.pos+1 >= len(d.body) {
		d.pos = len(d.body)
		return 0, d.malformed("the end of a string")
	}
	c := d.body[d.pos+1]
	if c == 'u' {
		r, ok := d.hex4()
		if !ok {
			return 0, d.malformed("four hexadecimal digits after \\u")
		}
		if !utf16.IsSurrogate(r) {
			return r, nil
		}
		// Half of a pair is not a character. Replacing it would make different strings equal.
		if d.at('\\') && d.pos+1 < len(d.body) && d.body[d.pos+1] == 'u' {
			if low, ok := d.hex4(); ok {
				if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
					return pair, nil
				}
			}
		}
		return 0, d.malformed("a whole surrogate pair")
	}
	d.pos += 2
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	}
	d.pos--
	return 0, d.malformed("one of \" \\ / b f n r t u after \\")
}

// hex4 reads \uXXXX.
func (d *decoder) hex4() (r rune, ok bool) {
	if d.pos+6 > len(d.body) {
		return 0, false
	}
	for _, c := range d.body[d.pos+2 : d.pos+6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	d.pos += 6
	return r, true
}
