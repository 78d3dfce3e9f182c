package route

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/limit"
)

// Compiled is a route that is compiled for decisions. It is immutable.
type Compiled struct {
	Route
	subject    []source
	attributes []attributeSource // by name
	templates  []template
	longest    int        // segments of a template's path
	index      *pathIndex // of the templates; nil: their paths are compared one after the other
	headers    []string   // headers that the route reads, in lower case
	cookies    []string   // cookies that the route reads
	address    bool       // whether the route reads the address
	byAddress  source
}

type attributeSource struct {
	name string
	source
}

type template struct {
	pattern
	resource string
	cost     int64
}

// The slots of headers that every route reads.
const (
	slotForwardedMethod = iota
	slotForwardedURI
	slotOriginalMethod
	slotOriginalURI
	slotOriginalURL
	fixedSlots
)

var fixedHeaders = [fixedSlots]string{
	slotForwardedMethod: "x-forwarded-method", slotForwardedURI: "x-forwarded-uri",
	slotOriginalMethod: "x-original-method", slotOriginalURI: "x-original-uri", slotOriginalURL: "x-original-url",
}

// Compile compiles a valid route.
func Compile(r Route) (*Compiled, error) {
	if errs := r.Validate(); len(errs) > 0 {
		return nil, errs[0]
	}
	r = r.Clone()
	c := &Compiled{Route: r, byAddress: source{kind: fromAddress}}
	if len(r.Resources) > 0 {
		c.headers = append(c.headers, fixedHeaders[:]...)
	}
	for _, text := range r.Subject {
		c.subject = append(c.subject, c.place(text))
	}
	c.address = c.address || r.NoSubject == CountByAddress
	for _, name := range slices.Sorted(maps.Keys(r.Attributes)) {
		c.attributes = append(c.attributes, attributeSource{name, c.place(r.Attributes[name])})
	}
	for _, t := range r.Resources {
		p, err := parsePattern(t.Match)
		if err != nil {
			return nil, err
		}
		made := template{pattern: p, resource: t.ResourceName(), cost: r.Cost}
		if t.Cost != nil {
			made.cost = *t.Cost
		}
		c.templates = append(c.templates, made)
		c.longest = max(c.longest, len(p.segments))
	}
	c.indexPaths()
	return c, nil
}

// place parses a source of a valid route, and assigns a slot to its header.
func (c *Compiled) place(text string) source {
	s, _ := parseSource(text)
	header := s.name
	switch s.kind {
	case fromAddress:
		c.address = true
		return s
	case fromDescriptor:
		return s
	case fromCookie:
		header = "cookie"
		if s.cookie = slices.Index(c.cookies, s.name); s.cookie < 0 {
			s.cookie = len(c.cookies)
			c.cookies = append(c.cookies, s.name)
		}
	case fromJWT:
		header = "authorization"
	case fromHeader:
	}
	if s.slot = slices.Index(c.headers, header); s.slot < 0 {
		s.slot = len(c.headers)
		c.headers = append(c.headers, header)
	}
	return s
}

// NeedsAddress reports whether the route reads the address of the client. If so, Input.Address must
// have it.
func (c *Compiled) NeedsAddress() bool { return c.address }

// Input has what a route reads of one request. Its memory is reused: a Decision from it is valid
// until the next Reset. The zero value is ready to use.
type Input struct {
	Method []byte // the request's own method
	// Target is the URI after the route in the path of the request; empty without one.
	Target  []byte
	Address netip.Addr // of the client, as reported by the gateway; the zero value if unknown
	Entries []Entry    // of the descriptor; nil for an HTTP request

	lines      []line
	segments   [][]byte
	text       []byte // decoded and computed texts
	descriptor []byte // the text of Entries; nil: not built yet
	attributes []Attribute
	cookies    []cookie // of the route's cookies; empty: not read yet
	members    []member // of the claims of a token
	claims     bytes.Buffer
	decoder    *jsontext.Decoder // reads claims; nil: no token was read yet
	tokenRead  bool
}

// line is a header field that the route reads.
type line struct {
	slot  int
	value []byte
}

// Reset clears the input for the next request.
func (in *Input) Reset() {
	clear(in.lines)
	clear(in.segments)
	clear(in.attributes)
	clear(in.cookies)
	clear(in.members)
	*in = Input{lines: in.lines[:0], segments: in.segments[:0], text: in.text[:0], attributes: in.attributes[:0], cookies: in.cookies[:0], members: in.members[:0], decoder: in.decoder}
}

// Bytes returns the size of the input's memory.
func (in *Input) Bytes() int {
	return cap(in.text) + 32*(cap(in.lines)+cap(in.segments)+cap(in.attributes)+cap(in.cookies)) + 56*cap(in.members)
}

// Take passes a header field to the input. It must be called for each field of the request, in
// order. It keeps only what the route reads. value must not change until the decision.
func (c *Compiled) Take(in *Input, name, value []byte) {
	for slot, wanted := range c.headers {
		if len(name) == len(wanted) && equalLower(name, wanted) {
			in.lines = append(in.lines, line{slot, value})
			return
		}
	}
}

// Verdict is the outcome for a request.
type Verdict uint8

// The verdicts.
const (
	Check  Verdict = iota // decide by the limits
	Allow                 // allow without counting
	Refuse                // deny with the reason in Code
)

// Code is the reason of a refusal.
type Code string

// The codes. They are the same as those of a check without a route.
const (
	SubjectMissing   Code = "SUBJECT_MISSING"
	SubjectInvalid   Code = "SUBJECT_INVALID"
	ResourceInvalid  Code = "RESOURCE_INVALID"
	AttributeInvalid Code = "ATTRIBUTE_INVALID"
)

// Decision is the result of a route for a request.
type Decision struct {
	Verdict    Verdict
	Code       Code // if Verdict is Refuse
	Subject    []byte
	Source     string // the source of the subject
	Resource   string
	Cost       int64
	Attributes []Attribute
	ByEntries  bool // the resource comes from a template of entries
}

// Attribute is an attribute of a check.
type Attribute struct {
	Name  string
	Value []byte
}

// Decide returns the decision about the request in in.
func (c *Compiled) Decide(in *Input) Decision {
	d := Decision{Resource: c.DefaultResource, Cost: c.Cost}
	refuse := func(code Code) Decision {
		return Decision{Verdict: Refuse, Code: code, Resource: d.Resource, Cost: d.Cost}
	}

	found, ok := noTemplate, true
	if len(c.templates) > 0 {
		if found = c.descriptorTemplate(in.Entries); found == noTemplate {
			found, ok = c.resource(in)
		}
	}
	if found != noTemplate {
		d.Resource, d.Cost = c.templates[found].resource, c.templates[found].cost
		d.ByEntries = c.templates[found].descriptor != nil
	}
	switch state := c.findSubject(in, &d); {
	case state == missing && c.NoSubject == AllowNoSubject:
		return Decision{Verdict: Allow, Resource: d.Resource, Cost: d.Cost}
	case state == missing:
		return refuse(SubjectMissing)
	case state == unusable:
		return refuse(SubjectInvalid)
	case !ok:
		return refuse(ResourceInvalid)
	}
	in.attributes = in.attributes[:0]
	for i := range c.attributes {
		a := &c.attributes[i]
		value, state := c.value(in, a.source)
		switch state {
		case missing:
		case unusable:
			return refuse(AttributeInvalid)
		case there:
			in.attributes = append(in.attributes, Attribute{a.name, value})
		}
	}
	d.Attributes = in.attributes
	return d
}

// findSubject uses the first source that is present.
func (c *Compiled) findSubject(in *Input, d *Decision) (state presence) {
	for i, s := range c.subject {
		if d.Subject, state = c.value(in, s); state != missing {
			d.Source = c.Subject[i]
			return state
		}
	}
	if c.NoSubject == CountByAddress {
		d.Source = "ip"
		d.Subject, state = c.value(in, c.byAddress)
	}
	return state
}

// resource finds the template of the request. Gateways report the request's path in different
// headers. A customer can send such a header as well, and the gateway may forward it. Therefore all
// that are present must match the same template.
func (c *Compiled) resource(in *Input) (found int, ok bool) {
	found = noTemplate
	stated := false
	for _, s := range [...]struct{ method, target int }{
		{slotForwardedMethod, slotForwardedURI}, {slotOriginalMethod, slotOriginalURI}, {slotOriginalMethod, slotOriginalURL}, {-1, -1},
	} {
		method, target := in.Method, in.Target
		if s.target >= 0 {
			var state presence
			if target, state = in.single(s.target); state == unusable {
				return noTemplate, false
			}
			if said, state := in.single(s.method); state == unusable {
				return noTemplate, false
			} else if state == there {
				method = said
			}
		}
		if len(target) == 0 {
			continue
		}
		here := noTemplate
		if path, has := pathOf(target); has {
			if here, ok = c.template(in, method, path); !ok {
				return noTemplate, false
			}
		}
		if stated && here != found {
			return noTemplate, false
		}
		found, stated = here, true
	}
	return found, true
}

// presence is the state of a value.
type presence uint8

const (
	missing presence = iota
	there
	unusable // present, but invalid
)

// single returns the value of a header that must not appear more than once.
func (in *Input) single(slot int) (value []byte, state presence) {
	lines := 0
	for _, l := range in.lines {
		if l.slot == slot {
			value = l.value
			lines++
		}
	}
	switch {
	case lines > 1: // unknown which one is the gateway's
		return nil, unusable
	case len(value) == 0:
		return nil, missing
	}
	return value, there
}

// value returns the value of a source, in the form in which it is used.
func (c *Compiled) value(in *Input, s source) (value []byte, state presence) {
	switch s.kind {
	case fromAddress:
		value, state = in.address()
	case fromHeader:
		value, state = in.single(s.slot)
		if s.name == "authorization" {
			value = credentials(value)
		}
	case fromCookie:
		value, state = c.cookie(in, s)
	case fromJWT:
		value, state = in.claim(s.slot, s.name)
	case fromDescriptor:
		value, state = in.descriptorText()
	}
	if state != there {
		return nil, state
	}
	if c.Hash.hashes(s) {
		return in.hash(value), there
	}
	if !usable(value) {
		return nil, unusable
	}
	return value, there
}

// usable reports whether a value may be a subject or an attribute (limit.ValidName).
func usable(value []byte) bool {
	if len(value) == 0 || len(value) > limit.MaxNameBytes {
		return false
	}
	for _, c := range value {
		if c < ' ' || c > '~' {
			return limit.ValidName(string(value)) == nil
		}
	}
	return true
}

// hash returns "sha256:" and the digest, in the same form as clients of Weir.
func (in *Input) hash(value []byte) []byte {
	from := len(in.text)
	sum := sha256.Sum256(value)
	in.text = hex.AppendEncode(append(in.text, "sha256:"...), sum[:])
	return in.text[from:len(in.text):len(in.text)]
}

// address returns the client's address. For IPv6 it returns the network of 64 bits, because a
// customer can use all addresses in it.
func (in *Input) address() ([]byte, presence) {
	if !in.Address.IsValid() {
		return nil, missing
	}
	from := len(in.text)
	if ip := in.Address.Unmap().WithZone(""); ip.Is4() {
		in.text = ip.AppendTo(in.text)
	} else {
		network, _ := ip.Prefix(64) // cannot fail for a valid IPv6 address
		in.text = network.AppendTo(in.text)
	}
	return in.text[from:len(in.text):len(in.text)], there
}

// credentials removes the scheme from an Authorization header. Servers treat Bearer, bearer and two
// spaces as equal.
func credentials(value []byte) []byte {
	if _, after, found := bytes.Cut(value, []byte{' '}); found {
		if after = bytes.TrimLeft(after, " \t"); len(after) > 0 {
			return after
		}
	}
	return value
}

// Bytes returns the approximate memory of the route, including what it points to and what the
// allocator rounds up.
func (c *Compiled) Bytes() int {
	const (
		object = 16
		header = 16 // of a string
	)
	n := int(reflect.TypeFor[Compiled]().Size()) + object + len(c.Slug) + len(c.Name) + len(c.Description) + len(c.DefaultResource)
	for _, s := range c.Subject {
		n += header + len(s) + int(reflect.TypeFor[source]().Size()) + len(s) + object
	}
	for name, s := range c.Attributes {
		n += 4*header + 2*(len(name)+len(s)) + int(reflect.TypeFor[attributeSource]().Size()) + 2*object
	}
	for _, name := range slices.Concat(c.headers, c.cookies) {
		n += header + len(name) + object
	}
	for i := range c.templates {
		t := &c.templates[i]
		n += int(reflect.TypeFor[Template]().Size()+reflect.TypeFor[template]().Size()) + 3*object
		n += 2*len(c.Resources[i].Match) + len(c.Resources[i].Resource) + len(t.segments)*int(reflect.TypeFor[segment]().Size())
		if t.descriptor != nil {
			n += t.descriptor.bytes()
		}
	}
	if c.index != nil {
		n += c.index.bytes()
	}
	return n
}
