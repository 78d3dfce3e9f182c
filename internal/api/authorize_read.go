package api

import (
	"bytes"
	"net/http"
	"unicode/utf8"

	"weir/internal/check"
	"weir/internal/limit"
)

// headerLines are the lines "Name: value" of a request's head, each ending in CR LF. Every
// transport passes headers in this form, so that they are parsed in one place.
type headerLines []byte

// next returns the first line and the rest. The value has no spaces around it.
func (l headerLines) next() (name, value []byte, rest headerLines) {
	end := bytes.IndexByte(l, '\n')
	line := l[:end-1]
	colon := bytes.IndexByte(line, ':')
	return line[:colon], bytes.Trim(line[colon+1:], " \t"), l[end+1:]
}

const (
	weirPrefix      = "weir-"
	attributePrefix = "weir-attribute-"
)

// The headers of the question, one bit for each, to detect duplicates.
const (
	askedSubject = 1 << iota
	askedResource
	askedCost
	askedPlan
	askedEncoding
)

// decode reads the check from the headers. A mistake of the gateway is a problem. An unusable value
// that a customer may have sent is a denial.
func (q *authorizeQuestion) decode(policy *check.Policy, sc *scratch) (reqs []check.Request, p *Problem) {
	q.reading = true
	if q.via.named() {
		reqs, p = q.decodeRoute(policy, sc)
	} else {
		reqs, p = q.decodeHeaders(sc)
	}
	q.reading = false
	return reqs, p
}

// decodeHeaders reads the headers Weir-Subject and others.
func (q *authorizeQuestion) decodeHeaders(sc *scratch) ([]check.Request, *Problem) {
	f := &sc.decoder.fields
	*f = checkFields{cost: 1}
	sc.decoder.text = sc.decoder.text[:0]
	var seen, twice uint
	var refused check.Code
	percent := false
	for lines := q.lines; len(lines) > 0; {
		name, value, rest := lines.next()
		lines = rest
		if len(name) <= len(weirPrefix) || !is(name[:len(weirPrefix)], weirPrefix) {
			continue
		}
		bit := uint(0)
		switch {
		case named(name, "weir-subject"):
			bit, f.subject = askedSubject, value
		case named(name, "weir-resource"):
			bit, f.resource = askedResource, value
		case named(name, "weir-plan"):
			bit, f.plan = askedPlan, value
		case named(name, "weir-cost"):
			bit = askedCost
			cost, ok := parseCost(value)
			if !ok {
				return nil, invalid(wrongField("header:Weir-Cost", badCost))
			}
			f.cost = cost
		case named(name, "weir-encoding"):
			bit = askedEncoding
			if !named(value, "percent") {
				return nil, invalid(wrongField("header:Weir-Encoding", limit.Wrong("Use percent, or omit it to send values as they are.", "must be percent")))
			}
			percent = true
		case len(name) > len(attributePrefix) && is(name[:len(attributePrefix)], attributePrefix):
			if !f.addAttribute(name[len(attributePrefix):], value, sc) {
				refused = attributeInvalid
			}
		}
		twice |= seen & bit
		seen |= bit
	}
	switch {
	case twice&askedSubject != 0:
		// The customer sent the same header as the gateway: it is unknown which of the two is
		// right.
		refused = subjectInvalid
	case twice&askedResource != 0:
		refused = resourceInvalid
	case twice != 0:
		return nil, repeatedHeader(twice)
	}
	if percent && refused == check.NoCode {
		refused = f.percentDecode(sc)
	}
	if refused == check.NoCode {
		refused = f.refusal()
	}
	if refused != check.NoCode {
		sc.refuse(refused)
		return nil, nil
	}
	f.seen = fieldCost
	if len(f.resource) > 0 {
		f.seen |= fieldResource
	}
	f.copyTo(&sc.checks[0])
	return sc.checks[:], nil
}

// refusal returns why the values cannot be used, and check.NoCode if they can.
func (f *checkFields) refusal() check.Code {
	switch {
	case len(f.subject) == 0:
		return subjectMissing
	case !usable(f.subject):
		return subjectInvalid
	case len(f.resource) > 0 && !usable(f.resource):
		return resourceInvalid
	}
	for i := range f.attributes[:f.attributeCount] {
		if !usable(f.attributes[i].value) {
			return attributeInvalid
		}
	}
	return check.NoCode
}

// usable reports whether a value can be a subject, a resource or an attribute (limit.ValidName).
func usable(value []byte) bool {
	for _, c := range value {
		if c < ' ' || c > '~' {
			return nameProblem(value, false) == nil
		}
	}
	return nameProblem(value, true) == nil
}

// addAttribute adds an attribute. Header names have no letter case, so names of attributes are in
// lower case here. An empty value is no attribute, like an empty subject.
func (f *checkFields) addAttribute(name, value []byte, sc *scratch) bool {
	if len(value) == 0 {
		return true
	}
	from := len(sc.decoder.text)
	for _, c := range name {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		sc.decoder.text = append(sc.decoder.text, c)
	}
	lower := sc.decoder.text[from:]
	if f.attributeCount == len(f.attributes) || !limit.ValidAttributeName(lower) {
		return false
	}
	for i := range f.attributes[:f.attributeCount] {
		if bytes.Equal(f.attributes[i].name, lower) {
			return false
		}
	}
	f.attributes[f.attributeCount].name, f.attributes[f.attributeCount].value = lower, value
	f.attributeCount++
	return true
}

// percentDecode decodes all values once.
func (f *checkFields) percentDecode(sc *scratch) check.Code {
	decode := func(value *[]byte) (ok bool) {
		*value, ok = sc.percentDecode(*value)
		return ok
	}
	switch {
	case !decode(&f.subject):
		return subjectInvalid
	case !decode(&f.resource):
		return resourceInvalid
	}
	decode(&f.plan) // a plan that cannot be decoded does not exist
	for i := range f.attributes[:f.attributeCount] {
		if !decode(&f.attributes[i].value) {
			return attributeInvalid
		}
	}
	return check.NoCode
}

// percentDecode replaces each %XX by its byte. Other characters are unchanged, including +.
func (sc *scratch) percentDecode(value []byte) ([]byte, bool) {
	if bytes.IndexByte(value, '%') < 0 {
		return value, true
	}
	from := len(sc.decoder.text)
	for i := 0; i < len(value); i++ {
		c := value[i]
		if c == '%' {
			if len(value)-i < 3 {
				return value, false
			}
			high, ok1 := hexDigit(value[i+1])
			low, ok2 := hexDigit(value[i+2])
			if !ok1 || !ok2 {
				return value, false
			}
			c = high<<4 | low
			i += 2
		}
		sc.decoder.text = append(sc.decoder.text, c)
	}
	decoded := sc.decoder.text[from:]
	return decoded, utf8.Valid(decoded)
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

// parseCost parses a cost in the same notation as in the body of a check.
func parseCost(value []byte) (n int64, ok bool) {
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = n*10 + int64(c-'0'); n > maxCost {
			return 0, false
		}
	}
	return n, len(value) > 0 && (value[0] != '0' || len(value) == 1)
}

// named reports whether a name is equal to lower, which is in lower case.
func named(name []byte, lower string) bool { return len(name) == len(lower) && is(name, lower) }

func repeatedHeader(twice uint) *Problem {
	for bit, name := range map[uint]string{askedCost: "Weir-Cost", askedPlan: "Weir-Plan", askedEncoding: "Weir-Encoding"} {
		if twice&bit != 0 {
			return invalid(wrongField("header:"+name, isRepeated))
		}
	}
	return newProblem(http.StatusBadRequest, codeInvalidHeader, "A header may appear only once, and appears twice.")
}

// refuse stores in sc a denial without a rule. decide answers it unchanged.
func (sc *scratch) refuse(code check.Code) {
	sc.refused = append(sc.refused[:0], check.Decision{Code: code, Resource: defaultResource, Cost: 1, Deciding: -1})
}
