package route

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// cookie is the value of a cookie that the route reads.
type cookie struct {
	value []byte
	state presence
}

// cookie returns the value of the source, a cookie.
func (c *Compiled) cookie(in *Input, s source) (value []byte, state presence) {
	if len(in.cookies) == 0 {
		c.readCookies(in, s.slot)
	}
	found := &in.cookies[s.cookie]
	return found.value, found.state
}

// readCookies reads all cookies of the route, once: a route may have many sources that are cookies,
// and a customer may send many cookies.
func (c *Compiled) readCookies(in *Input, slot int) {
	in.cookies = slices.Grow(in.cookies, len(c.cookies))[:len(c.cookies)]
	for _, l := range in.lines {
		if l.slot != slot {
			continue
		}
		for rest := l.value; len(rest) > 0; {
			if rest[0] == ';' {
				rest = rest[1:]
				continue
			}
			var pair []byte
			pair, rest, _ = bytes.Cut(rest, []byte{';'})
			key, text, _ := bytes.Cut(pair, []byte{'='})
			key = bytes.Trim(key, " \t")
			for i, name := range c.cookies {
				if string(key) == name {
					in.cookies[i].add(in.cookieText(text))
					break
				}
			}
		}
	}
}

// add adds a value. Two different values are invalid, because servers disagree on which one counts.
func (k *cookie) add(text []byte) {
	switch {
	case k.state == there && !bytes.Equal(text, k.value):
		*k = cookie{state: unusable}
	case k.state == missing && len(text) > 0:
		*k = cookie{text, there}
	}
}

// cookieText decodes what some servers decode: quotes and percent-encoding.
func (in *Input) cookieText(text []byte) []byte {
	text = bytes.Trim(text, " \t")
	if len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	if decoded := in.decoded(text); utf8.Valid(decoded) {
		return decoded
	}
	return text
}
