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
		in.token = in.payload(value)
	}
	if in.token == nil {
		return nil, missing
	}
	if found := in.member(in.token, name); found != nil {
		return found, there
	}
	claims := in.token
	for {
		outer, inner, nested := strings.Cut(name, ".")
		if !nested {
			return nil, missing
		}
		if claims = object(claims, outer); claims == nil {
			return nil, missing
		}
		if found := in.member(claims, inner); found != nil {
			return found, there
		}
		name = inner
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

// member returns the text or number of an object's member, or nil.
func (in *Input) member(object []byte, name string) (value []byte) {
	eachMember(object, name, func(d *jsontext.Decoder) {
		token, err := d.ReadToken()
		if err != nil {
			return
		}
		if kind := token.Kind(); kind == '"' || kind == '0' {
			from := len(in.text)
			in.text = append(in.text, token.String()...)
			value = in.text[from:len(in.text):len(in.text)]
		}
	})
	if len(value) == 0 {
		return nil
	}
	return value
}

// object returns an object's member that is an object, or nil.
func object(outer []byte, name string) (inner []byte) {
	eachMember(outer, name, func(d *jsontext.Decoder) {
		if value, err := d.ReadValue(); err == nil && value.Kind() == '{' {
			inner = bytes.Clone(value)
		}
	})
	return inner
}

// eachMember calls read for the value of each member with this name.
func eachMember(object []byte, name string, read func(*jsontext.Decoder)) {
	d := jsontext.NewDecoder(bytes.NewBuffer(object))
	if begin, err := d.ReadToken(); err != nil || begin.Kind() != '{' {
		return
	}
	for d.PeekKind() == '"' {
		key, err := d.ReadToken()
		if err != nil {
			return
		}
		if key.String() == name {
			read(d)
			return
		}
		if d.SkipValue() != nil {
			return
		}
	}
}
