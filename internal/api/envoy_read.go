package api

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"weir/internal/check"
	"weir/internal/limit"
)

// descriptor is a RateLimitDescriptor: one check.
type descriptor struct {
	first, count int   // in the question's entries
	hits         int64 // of its own; meaningful where ownHits
	ownHits      bool
}

// entry is an entry of a descriptor, as slices of the message.
type entry struct{ key, value []byte }

// maxDescriptors is how many descriptors one request may have. Their checks are one run of a script, during
// which Redis does nothing else.
const maxDescriptors = 16

// The numbers of the fields that are read.
const (
	fieldDomain      = 1
	fieldDescriptors = 2
	fieldHitsAddend  = 3

	fieldEntries         = 1
	fieldLimit           = 2
	fieldDescriptorHits  = 3
	fieldIsNegativeHits  = 4
	fieldEntryKey        = 1
	fieldEntryValue      = 2
	fieldWrappedValue    = 1
	maxMessageAttributes = limit.MaxAttributes
)

// The entries of a descriptor that mean something by themselves.
const (
	subjectEntry  = "subject"
	resourceEntry = "resource"
	planEntry     = "plan"
)

// fields calls f for every field of a message, with the number that it holds, or its bytes. It reports
// whether the message is well-formed and f never said no.
func fields(b []byte, f func(number protowire.Number, n uint64, bytes []byte) bool) bool {
	for len(b) > 0 {
		number, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return false
		}
		b = b[size:]
		var n uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			bytes, size = protowire.ConsumeBytes(b)
			if bytes == nil {
				bytes = []byte{}
			}
		default:
			size = protowire.ConsumeFieldValue(number, kind, b)
		}
		if size < 0 || !f(number, n, bytes) {
			return false
		}
		b = b[size:]
	}
	return true
}

// parse reads a RateLimitRequest. What it keeps are slices of b.
func (q *envoyQuestion) parse(b []byte) *Problem {
	q.domain, q.hits, q.descriptors, q.entries, q.ignored = nil, 0, q.descriptors[:0], q.entries[:0], 0
	ok := fields(b, func(number protowire.Number, n uint64, bytes []byte) bool {
		switch {
		case number == fieldDomain && bytes != nil:
			q.domain = bytes
		case number == fieldDescriptors && bytes != nil:
			return len(q.descriptors) > maxDescriptors || q.parseDescriptor(bytes)
		case number == fieldHitsAddend && bytes == nil:
			q.hits = int64(uint32(n)) // as every reader of a uint32 takes it
		}
		return true
	})
	if q.hits == 0 {
		q.hits = 1
	}
	switch {
	case !ok:
		return newProblem(http.StatusBadRequest, codeMalformedMessage, "The message is not a RateLimitRequest.")
	case len(q.descriptors) == 0:
		return invalid(ProblemField{Pointer: "/descriptors", Message: "is required: a list of 1 to " + strconv.Itoa(maxDescriptors) + " descriptors"})
	case len(q.descriptors) > maxDescriptors:
		return invalid(ProblemField{Pointer: "/descriptors", Message: "may hold at most " + strconv.Itoa(maxDescriptors) + " descriptors"})
	}
	return nil
}

func (q *envoyQuestion) parseDescriptor(b []byte) bool {
	d := descriptor{first: len(q.entries)}
	negative := false
	ok := fields(b, func(number protowire.Number, n uint64, bytes []byte) bool {
		switch {
		case number == fieldEntries && bytes != nil:
			d.count++
			return q.parseEntry(bytes)
		case number == fieldLimit && bytes != nil:
			q.ignored++
		case number == fieldDescriptorHits && bytes != nil:
			d.ownHits, d.hits = true, 0
			return fields(bytes, func(number protowire.Number, n uint64, bytes []byte) bool {
				if number == fieldWrappedValue && bytes == nil {
					d.hits = int64(min(n, uint64(maxCost)))
				}
				return true
			})
		case number == fieldIsNegativeHits && bytes == nil:
			negative = n != 0
		}
		return true
	})
	if negative {
		q.ignored++
		d.ownHits, d.hits = true, 0
	}
	q.descriptors = append(q.descriptors, d)
	return ok
}

func (q *envoyQuestion) parseEntry(b []byte) bool {
	var e entry
	ok := fields(b, func(number protowire.Number, _ uint64, bytes []byte) bool {
		switch {
		case number == fieldEntryKey && bytes != nil:
			e.key = bytes
		case number == fieldEntryValue && bytes != nil:
			e.value = bytes
		}
		return true
	})
	q.entries = append(q.entries, e)
	return ok
}

// decode makes a check of each descriptor. A value that a customer may have sent, and that cannot be used,
// denies the whole request.
func (q *envoyQuestion) decode(_ *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	q.reqs = q.reqs[:0]
	refused := false
	for i := range q.descriptors {
		d := &q.descriptors[i]
		q.reqs = append(q.reqs, check.Request{})
		code, p := q.decodeDescriptor(i, &q.reqs[i], sc)
		if p != nil {
			return nil, p
		}
		cost := q.hits
		if d.ownHits {
			cost = d.hits
		}
		q.reqs[i].Cost = cost
		sc.refused = append(sc.refused, check.Decision{
			Allowed: code == check.NoCode, Code: code, Resource: q.reqs[i].Resource, Cost: cost, Deciding: -1,
		})
		refused = refused || code != check.NoCode
	}
	if !refused {
		sc.refused = sc.refused[:0]
	}
	return q.reqs, nil
}

// decodeDescriptor makes a check of descriptor i, or says why it is refused.
func (q *envoyQuestion) decodeDescriptor(i int, req *check.Request, sc *scratch) (check.Code, *Problem) {
	d := &q.descriptors[i]
	f := &sc.decoder.fields
	*f = checkFields{}
	sc.decoder.text = sc.decoder.text[:0]
	req.Resource = defaultResource
	var refused check.Code
	for _, e := range q.entries[d.first : d.first+d.count] {
		switch string(e.key) {
		case subjectEntry:
			if f.seen&fieldSubject != 0 {
				refused = subjectInvalid // nobody can tell which of the two is right
			}
			f.seen |= fieldSubject
			f.subject = e.value
		case resourceEntry:
			if f.seen&fieldResource != 0 {
				refused = resourceInvalid
			}
			f.seen |= fieldResource
			f.resource = e.value
		case planEntry:
			f.plan = e.value
		default:
			name, ok := sc.attributeName(f, e.key)
			if !ok {
				return check.NoCode, invalid(ProblemField{
					Pointer: "/descriptors/" + itoa(int64(i)) + "/entries",
					Message: "must have keys of 1 to 64 characters, none of them more often than 99 times",
				})
			}
			if f.attributeCount == maxMessageAttributes {
				return check.NoCode, invalid(ProblemField{
					Pointer: "/descriptors/" + itoa(int64(i)) + "/entries",
					Message: "may be at most " + strconv.Itoa(maxMessageAttributes) + " beside subject, resource and plan",
				})
			}
			f.attributes[f.attributeCount].name, f.attributes[f.attributeCount].value = name, sc.attributeValue(e.value)
			f.attributeCount++
		}
	}
	if len(f.resource) == 0 {
		f.seen &^= fieldResource
	}
	if refused == check.NoCode {
		refused = f.namesRefusal()
	}
	if refused == check.NoCode {
		f.copyTo(req)
	}
	return refused, nil
}

// namesRefusal says why the subject or the resource cannot be used; check.NoCode if both can.
func (f *checkFields) namesRefusal() check.Code {
	switch {
	case len(f.subject) == 0:
		return subjectMissing
	case !usable(f.subject):
		return subjectInvalid
	case len(f.resource) > 0 && !usable(f.resource):
		return resourceInvalid
	}
	return check.NoCode
}

// attributeName makes the name of an attribute of an entry's key. Characters that a name cannot have become
// _, and a key that is there again gets a number: envoy writes generic_key for each of its generic keys.
func (sc *scratch) attributeName(f *checkFields, key []byte) (name []byte, ok bool) {
	plain := limit.ValidAttributeName(key)
	if plain && !f.hasAttribute(key) {
		return key, true
	}
	from := len(sc.decoder.text)
	for _, c := range key {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			c = '_'
		}
		sc.decoder.text = append(sc.decoder.text, c)
	}
	base := len(sc.decoder.text)
	for again := int64(2); again < 100; again++ {
		name = sc.decoder.text[from:len(sc.decoder.text):len(sc.decoder.text)]
		if !limit.ValidAttributeName(name) {
			return nil, false
		}
		if !f.hasAttribute(name) {
			return name, true
		}
		sc.decoder.text = strconv.AppendInt(append(sc.decoder.text[:base], '.'), again, 10)
	}
	return nil, false
}

func (f *checkFields) hasAttribute(name []byte) bool {
	for i := range f.attributes[:f.attributeCount] {
		if string(f.attributes[i].name) == string(name) {
			return true
		}
	}
	return false
}

// attributeValue makes a value of an attribute usable. One that is too long or is not text is replaced by
// its hash, which counts just as well. An empty value stays one: whoever sends an empty header must not get
// past the rule that counts by it.
func (sc *scratch) attributeValue(value []byte) []byte {
	if len(value) == 0 || usable(value) {
		return value
	}
	from := len(sc.decoder.text)
	sum := sha256.Sum256(value)
	sc.decoder.text = hex.AppendEncode(append(sc.decoder.text, "sha256:"...), sum[:])
	return sc.decoder.text[from:len(sc.decoder.text):len(sc.decoder.text)]
}
