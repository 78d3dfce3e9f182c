package api

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
)

// descriptor is a RateLimitDescriptor: one check.
type descriptor struct {
	first, count int   // in the question's entries
	hits         int64 // its own hits; valid if ownHits
	ownHits      bool
	routed       bool // the route of the domain decided it
}

// maxDescriptors is the maximum number of descriptors of one request. Their checks are one script
// call, during which Redis does nothing else, or several of at most engine.MaxCallWork.
const maxDescriptors = 16

// maxEntries is the maximum number of entries of one descriptor: its attributes, subject, resource
// and plan. An entry without a key and a value takes two bytes of a message, and 48 in memory.
const maxEntries = limit.MaxAttributes + 3

// maxFields is the maximum number of fields of one message, with those of its descriptors, entries
// and groups. maxDescriptors with maxEntries have less than a thousand. A field can be as short as
// two bytes, so a message can have half a million, which take some 10 ms.
const maxFields = 4096

// maxRouted is the maximum number of bytes in the entries of a request that a route reads. A route
// may read them once for each of its sources.
const maxRouted = 128 << 10

// The field numbers of a request.
const (
	fieldDomain      = 1
	fieldDescriptors = 2
	fieldHitsAddend  = 3

	fieldEntries        = 1
	fieldLimit          = 2
	fieldDescriptorHits = 3
	fieldIsNegativeHits = 4
	fieldEntryKey       = 1
	fieldEntryValue     = 2
	fieldWrappedValue   = 1
)

// The entries of a descriptor with a special meaning.
const (
	subjectEntry  = "subject"
	resourceEntry = "resource"
	planEntry     = "plan"
)

// fields calls f for every field of a message, with its number or its bytes, until f returns a
// problem.
func (q *envoyQuestion) fields(b []byte, f func(number protowire.Number, n uint64, bytes []byte) *Problem) *Problem {
	for len(b) > 0 {
		number, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return notARequest()
		}
		b = b[size:]
		if q.fieldsRead++; q.fieldsRead > maxFields {
			return tooManyFields()
		}
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
		case protowire.StartGroupType:
			size = q.skipGroup(number, b)
		default:
			size = protowire.ConsumeFieldValue(number, kind, b)
		}
		if q.fieldsRead > maxFields {
			return tooManyFields()
		}
		if size < 0 {
			return notARequest()
		}
		if p := f(number, n, bytes); p != nil {
			return p
		}
		b = b[size:]
	}
	return nil
}

// skipGroup returns the length of a group, or less than 0 if it is malformed or has too many
// fields. No version of the message has groups. But the library, too, ignores them if they are
// unknown.
func (q *envoyQuestion) skipGroup(group protowire.Number, b []byte) (size int) {
	rest := b
	for {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return n
		}
		rest = rest[n:]
		if kind == protowire.EndGroupType {
			if number != group {
				return -1
			}
			return len(b) - len(rest)
		}
		if q.fieldsRead++; q.fieldsRead > maxFields {
			return -1
		}
		if kind == protowire.StartGroupType {
			n = q.skipGroup(number, rest)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, rest)
		}
		if n < 0 {
			return n
		}
		rest = rest[n:]
	}
}

func notARequest() *Problem {
	return newProblem(http.StatusBadRequest, codeMalformedMessage, "The message is not a RateLimitRequest.")
}

func tooManyFields() *Problem {
	return newProblem(http.StatusBadRequest, codeMalformedMessage, "The message has more than "+itoa(maxFields)+" fields.")
}

func tooManyDescriptors() *Problem {
	return invalid(wrongField("/descriptors", limit.Wrong("Send fewer.", "may have at most %d descriptors", maxDescriptors)))
}

// parse decodes a RateLimitRequest. It keeps slices of b. It stops at the first descriptor or entry
// that is one too many.
func (q *envoyQuestion) parse(b []byte) *Problem {
	q.domain, q.hits, q.descriptors, q.entries, q.ignored, q.fieldsRead = nil, 0, q.descriptors[:0], q.entries[:0], 0, 0
	p := q.fields(b, func(number protowire.Number, n uint64, bytes []byte) *Problem {
		switch {
		case number == fieldDomain && bytes != nil:
			q.domain = bytes
		case number == fieldDescriptors && bytes != nil:
			if len(q.descriptors) == maxDescriptors {
				return tooManyDescriptors()
			}
			return q.parseDescriptor(bytes)
		case number == fieldHitsAddend && bytes == nil:
			q.hits = int64(uint32(n)) // like every reader of a uint32
		}
		return nil
	})
	if q.hits == 0 {
		q.hits = 1
	}
	if p == nil && len(q.descriptors) == 0 {
		p = invalid(wrongField("/descriptors", limit.Wrong(isRequired.Fix, "is required: a list of 1 to %d descriptors", maxDescriptors)))
	}
	return p
}

func (q *envoyQuestion) parseDescriptor(b []byte) *Problem {
	d := descriptor{first: len(q.entries)}
	negative := false
	p := q.fields(b, func(number protowire.Number, n uint64, bytes []byte) *Problem {
		switch {
		case number == fieldEntries && bytes != nil:
			if d.count == maxEntries {
				return tooManyEntries(len(q.descriptors))
			}
			d.count++
			return q.parseEntry(bytes)
		case number == fieldLimit && bytes != nil:
			q.ignored++
		case number == fieldDescriptorHits && bytes != nil:
			d.ownHits, d.hits = true, 0
			return q.fields(bytes, func(number protowire.Number, n uint64, bytes []byte) *Problem {
				if number == fieldWrappedValue && bytes == nil {
					d.hits = int64(min(n, uint64(maxCost)))
				}
				return nil
			})
		case number == fieldIsNegativeHits && bytes == nil:
			negative = n != 0
		}
		return nil
	})
	if negative {
		q.ignored++
		d.ownHits, d.hits = true, 0
	}
	q.descriptors = append(q.descriptors, d)
	return p
}

func (q *envoyQuestion) parseEntry(b []byte) *Problem {
	var e route.Entry
	p := q.fields(b, func(number protowire.Number, _ uint64, bytes []byte) *Problem {
		switch {
		case number == fieldEntryKey && bytes != nil:
			e.Key = bytes
		case number == fieldEntryValue && bytes != nil:
			e.Value = bytes
		}
		return nil
	})
	q.entries = append(q.entries, e)
	return p
}

// decode parses the message and converts each descriptor to a check. An unusable value that a
// customer may have sent denies the whole request.
func (q *envoyQuestion) decode(policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	if p := q.parse(q.message); p != nil {
		return nil, p
	}
	q.reqs, q.uncounted, q.routed = q.reqs[:0], q.uncounted[:0], 0
	q.route = policy.Route(route.DomainSlug(nil, q.domain))
	refused := false
	for i := range q.descriptors {
		q.reqs, q.uncounted = append(q.reqs, check.Request{Resource: defaultResource}), append(q.uncounted, false)
		code, p := q.decodeDescriptor(i, &q.reqs[i], sc)
		if p != nil {
			return nil, p
		}
		sc.refused = append(sc.refused, check.Decision{
			Allowed: code == check.NoCode, Code: code, Resource: q.reqs[i].Resource, Cost: q.reqs[i].Cost, Deciding: -1,
		})
		refused = refused || code != check.NoCode
	}
	if refused {
		return q.reqs, nil
	}
	if q.dropUncounted(); len(q.reqs) > 0 {
		sc.refused = sc.refused[:0]
	}
	return q.reqs, nil
}

// dropUncounted removes from reqs the checks of descriptors that do not count, because another
// descriptor of the request replaces their resource.
func (q *envoyQuestion) dropUncounted() {
	if q.route == nil {
		return
	}
	for i := range q.reqs {
		if !q.descriptors[i].routed {
			continue
		}
		replaced := q.route.Replaces(q.reqs[i].Resource)
		for j := range q.reqs {
			q.uncounted[j] = q.uncounted[j] || j != i && q.descriptors[j].routed && slices.Contains(replaced, q.reqs[j].Resource)
		}
	}
	kept := 0
	for i := range q.reqs {
		if !q.uncounted[i] {
			q.reqs[kept] = q.reqs[i]
			kept++
		}
	}
	q.reqs = q.reqs[:kept]
}

// decodeDescriptor converts descriptor i to a check, or returns why it is denied.
func (q *envoyQuestion) decodeDescriptor(i int, req *check.Request, sc *scratch) (refused check.Code, p *Problem) {
	d := &q.descriptors[i]
	entries := q.entries[d.first : d.first+d.count]
	f := &sc.decoder.fields
	*f = checkFields{}
	sc.decoder.text = sc.decoder.text[:0]
	if refused, p = q.readEntries(i, entries, f, sc); p != nil {
		return refused, p
	}
	cost := q.hits
	if d.ownHits {
		cost = d.hits
	}
	if d.routed = q.route != nil && f.seen&fieldSubject == 0 && refused == check.NoCode; d.routed {
		if q.routed += bytesOf(entries); q.routed > maxRouted {
			req.Cost = cost
			return requestInvalid, nil // a customer may have sent what is so long
		}
		decided := q.decideByRoute(entries)
		cost = product(cost, decided.Cost)
		switch decided.Verdict {
		case route.Refuse:
			refused = check.Code(decided.Code)
		case route.Allow:
			q.uncounted[i] = true
		case route.Check:
			f.subject = decided.Subject
			if decided.ByEntries { // resource and plan are then ordinary entries
				f.resource, f.plan = nil, nil
			}
			if len(f.resource) == 0 {
				f.resource, f.seen = []byte(decided.Resource), f.seen|fieldResource
			}
			for _, a := range decided.Attributes {
				if name := []byte(a.Name); !f.hasAttribute(name) && !f.append(name, a.Value) {
					return refused, tooManyEntries(i)
				}
			}
		}
	}
	if refused == check.NoCode && !q.uncounted[i] {
		refused = f.namesRefusal()
	}
	if refused == check.NoCode {
		if len(f.resource) == 0 {
			f.seen &^= fieldResource
		}
		f.copyTo(req)
	}
	req.Cost = cost
	return refused, nil
}

func bytesOf(entries []route.Entry) (n int) {
	for i := range entries {
		n += len(entries[i].Key) + len(entries[i].Value)
	}
	return n
}

// decideByRoute evaluates the domain's route for a descriptor.
func (q *envoyQuestion) decideByRoute(entries []route.Entry) route.Decision {
	in := &q.input
	in.Reset()
	in.Entries = entries
	for _, e := range entries {
		switch string(e.Key) {
		case "method", ":method":
			in.Method = e.Value
		case "path", ":path":
			in.Target = e.Value
		case "remote_address":
			if q.route.NeedsAddress() {
				in.Address, _ = netip.ParseAddr(string(e.Value)) // an invalid address counts as missing
			}
		}
		q.route.Take(in, e.Key, e.Value)
	}
	return q.route.Decide(in)
}

// product returns the cost of a number of hits.
func product(hits, cost int64) int64 {
	if cost > 0 && hits > maxCost/cost {
		return maxCost
	}
	return hits * cost
}

// readEntries copies the entries of descriptor i to f.
func (q *envoyQuestion) readEntries(i int, entries []route.Entry, f *checkFields, sc *scratch) (refused check.Code, p *Problem) {
	for _, e := range entries {
		switch string(e.Key) {
		case subjectEntry:
			if f.seen&fieldSubject != 0 {
				refused = subjectInvalid // it is unknown which of the two is right
			}
			f.seen |= fieldSubject
			f.subject = e.Value
		case resourceEntry:
			if f.seen&fieldResource != 0 {
				refused = resourceInvalid
			}
			f.seen |= fieldResource
			f.resource = e.Value
		case planEntry:
			f.plan = e.Value
		default:
			name, ok := sc.attributeName(f, e.Key)
			if !ok {
				return refused, entryProblem(i, limit.Wrong("Rename the keys, or send fewer entries.", "must have keys of 1 to 64 characters, none of them more often than 99 times"))
			}
			if !f.append(name, sc.attributeValue(e.Value)) {
				return refused, tooManyEntries(i)
			}
		}
	}
	return refused, nil
}

// append adds an attribute, or returns false if there are too many.
func (f *checkFields) append(name, value []byte) bool {
	if f.attributeCount == len(f.attributes) {
		return false
	}
	f.attributes[f.attributeCount].name, f.attributes[f.attributeCount].value = name, value
	f.attributeCount++
	return true
}

func entryProblem(i int, p *limit.Problem) *Problem {
	return invalid(wrongField("/descriptors/"+itoa(int64(i))+"/entries", p))
}

func tooManyEntries(i int) *Problem {
	return entryProblem(i, limit.Wrong("Send fewer.", "may be at most %d besides subject, resource and plan", limit.MaxAttributes))
}

// namesRefusal returns why the subject or the resource cannot be used, and check.NoCode if both
// can.
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

// attributeName returns the name of the attribute for an entry's key. Invalid characters become _,
// and a duplicate key gets a number, because Envoy uses the key generic_key for each of its generic
// keys.
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

// attributeValue returns a valid attribute value. A value that is too long or not text is replaced
// by its hash, which counts as well. An empty value is kept: a client that sends an empty header
// must not bypass the rule that counts by it.
func (sc *scratch) attributeValue(value []byte) []byte {
	if len(value) == 0 || usable(value) {
		return value
	}
	from := len(sc.decoder.text)
	sum := sha256.Sum256(value)
	sc.decoder.text = hex.AppendEncode(append(sc.decoder.text, "sha256:"...), sum[:])
	return sc.decoder.text[from:len(sc.decoder.text):len(sc.decoder.text)]
}
