package route

import (
	"bytes"
	"encoding/base64"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// claim returns a claim of the bearer token, a text or a number. It does not verify the token: the
// gateway must have done that, or its customers can choose their subjects. If the token does not
// have three parts, or no such claim, the value is missing, so that the next source is used.
func (in *Input) claim(slot int, name string) ([]byte, presence) {
	value, state := in.single(slot)
	if state != there {
		return nil, state
	}
	if !in.tokenRead {
		in.tokenRead = true
		in.readMembers(in.payload(value))
	}
	level := in.members
	for {
		if found := in.scalar(level, name); found != nil {
			return found, there
		}
		outer, inner, nested := strings.Cut(name, ".")
		if !nested {
			return nil, missing
		}
		level, name = within(level, outer), inner
	}
}

// payload decodes the claims of a token, or returns nil if it is invalid.
func (in *Input) payload(authorization []byte) []byte {
	scheme, token, _ := bytes.Cut(authorization, []byte{' '})
	if !equalLower(scheme, "bearer") {
		return nil
	}
	token = bytes.TrimLeft(token, " \t")
	_, rest, signed := bytes.Cut(token, []byte{'.'})
	encoded, _, parted := bytes.Cut(rest, []byte{'.'})
	if !signed || !parted {
		return nil
	}
	from := len(in.text)
	text, err := base64.RawURLEncoding.AppendDecode(in.text, encoded)
	if err != nil {
		return nil
	}
	in.text = text
	return text[from:len(text):len(text)]
}

// member is a member of an object in the claims. Objects in lists are not among them.
type member struct {
	name  []byte
	value []byte // as in the token; nil: neither a text nor a number
	inner int    // the number of members inside the value, which follow this one
}

// maxClaimDepth is the number of objects around a claim that has a name.
const maxClaimDepth = maxClaimBytes/2 + 1

// readMembers reads the claims to in.members, all of them once: a route may look for many claims,
// and a claim may be inside of many objects. It ends at the first error, and keeps what was before.
func (in *Input) readMembers(claims []byte) {
	in.members = in.members[:0]
	if in.decoder == nil {
		in.decoder = jsontext.NewDecoder(&in.claims)
	}
	d := in.decoder
	in.claims = *bytes.NewBuffer(claims)
	d.Reset(&in.claims)
	if begin, err := d.ReadToken(); err != nil || begin.Kind() != '{' {
		return
	}
	var open [maxClaimDepth]int // the members whose values are being read
	depth := 0
	for {
		if d.PeekKind() == '}' {
			if _, err := d.ReadToken(); err != nil || depth == 0 {
				break
			}
			depth--
			in.members[open[depth]].inner = len(in.members) - open[depth] - 1
			continue
		}
		name, err := d.ReadValue()
		if err != nil {
			break
		}
		in.members = append(in.members, member{name: in.unquote(name)})
		switch d.PeekKind() {
		case '{':
			if depth < len(open) {
				open[depth] = len(in.members) - 1
				depth++
				_, err = d.ReadToken()
			} else {
				err = d.SkipValue()
			}
		case '"', '0':
			var value jsontext.Value
			if value, err = d.ReadValue(); err == nil {
				end := int(d.InputOffset())
				in.members[len(in.members)-1].value = claims[end-len(value) : end : end]
			}
		default:
			err = d.SkipValue()
		}
		if err != nil {
			break
		}
	}
	for ; depth > 0; depth-- { // the claims ended too early
		in.members[open[depth-1]].inner = len(in.members) - open[depth-1] - 1
	}
}

// scalar returns the text or number of a member, or nil.
func (in *Input) scalar(level []member, name string) []byte {
	for i := 0; i < len(level); i += 1 + level[i].inner {
		if m := &level[i]; m.value != nil && string(m.name) == name {
			if value := in.unquote(m.value); len(value) > 0 {
				return value
			}
		}
	}
	return nil
}

// within returns the members of an object's member that is an object.
func within(level []member, name string) []member {
	for i := 0; i < len(level); i += 1 + level[i].inner {
		if string(level[i].name) == name {
			return level[i+1 : i+1+level[i].inner]
		}
	}
	return nil
}

// unquote copies a text without its quotes, or a number as it is.
func (in *Input) unquote(raw []byte) []byte {
	from := len(in.text)
	if raw[0] == '"' {
		in.text, _ = jsontext.AppendUnquote(in.text, raw) // the decoder has read it, so it is valid
	} else {
		in.text = append(in.text, raw...)
	}
	return in.text[from:len(in.text):len(in.text)]
}
