package api

import (
	"bytes"
	"net/http"
	"strings"
	"unicode/utf8"

	"weir/internal/check"
	"weir/internal/limit"
)

const (
	maxCheckBody     = 16 << 10
	maxBatchBody     = 256 << 10
	maxBatch         = 100
	maxCheckDepth    = 16  // levels of objects and arrays; a batch needs four
	maxComparedNames = 100 // of attributes after the 16th that are compared with later ones
	maxFieldErrors   = 100 // entries of a problem's errors list
	maxCost          = limit.MaxFixedLimit
	// defaultResource is the resource of a check that names none.
	defaultResource = "default"
)

// Problems of the fields of a check.
var (
	badCost = limit.Wrong("Send a whole number from 0 to 1000000000000000, in digits alone.",
		"must be a whole number from 0 to 1000000000000000, written without sign, point or exponent")
	badPlan           = limit.Wrong("Create the plan first, or use one that GET /v1/plans lists.", "must be the slug of one of the tenant's plans")
	badBatch          = limit.MustBe("a list of 1 to %d checks", maxBatch)
	notName           = limit.MustBe("a string of 1 to %d bytes", limit.MaxNameBytes)
	notStrings        = limit.MustBe("an object of at most %d strings", limit.MaxAttributes)
	tooManyAttributes = limit.Wrong("Send fewer.", "may have at most %d attributes", limit.MaxAttributes)
	badAttributeName  = limit.Wrong("Rename the attribute.", "is not the name of an attribute: 1 to 64 of A-Z, a-z, 0-9, _ . - and neither subject nor resource")
	noSubject         = limit.Wrong("Send the customer, user or address that is limited.", "is required: 1 to %d bytes that say who is limited", limit.MaxNameBytes)
	noChecks          = limit.Wrong("Send a list of 1 to 100 checks.", "is required: a list of 1 to 100 checks")
	notCheck          = limit.Wrong("Write each check in braces: {...}.", "must be a check: an object")
)

// decoder decodes the body of a check. It is hand-written because it runs for every check, and
// because it must be strict: two bodies that a proxy or a log reads differently must not count on
// the same counter.
//
// Malformed JSON, unknown and duplicate fields end decoding immediately (400). An invalid value
// (422) is recorded, and decoding continues, so that the answer lists all invalid fields.
type decoder struct {
	body []byte
	pos  int
	text []byte // strings that had escapes, decoded
	errs []ProblemField
	// onlyPlans means that all recorded errors are unknown plans.
	onlyPlans bool
	entry     int             // index in a batch; -1 for a single check
	lease     bool            // the body asks for a lease: it has units instead of a cost
	reqs      []check.Request // of a batch
	fields    checkFields
}

// forget releases the contents of a batch and keeps the memory.
func (d *decoder) forget() {
	clear(d.reqs[:cap(d.reqs)])
	d.body, d.errs, d.reqs = nil, nil, d.reqs[:0]
}

// checkFields are the fields of one check, as slices of body or text.
type checkFields struct {
	seen                    checkField
	subject, resource, plan []byte
	cost                    int64
	dryRun, explain         bool
	attributes              [limit.MaxAttributes]struct{ name, value []byte }
	attributeCount          int
}

// checkField is one bit for each field of a check.
type checkField uint8

const (
	fieldSubject checkField = 1 << iota
	fieldResource
	fieldCost
	fieldPlan
	fieldAttributes
	fieldDryRun
	fieldExplain
	fieldUnits // of a lease
)

func fieldNamed(name []byte) checkField {
	switch string(name) {
	case "subject":
		return fieldSubject
	case "resource":
		return fieldResource
	case "cost":
		return fieldCost
	case "plan":
		return fieldPlan
	case "attributes":
		return fieldAttributes
	case "dry_run":
		return fieldDryRun
	case "explain":
		return fieldExplain
	case "units":
		return fieldUnits
	}
	return 0
}

// leaseFields are the fields of a body that asks for a lease.
const leaseFields = fieldSubject | fieldResource | fieldPlan | fieldAttributes | fieldUnits

var (
	checkFieldNames = []string{"subject", "resource", "cost", "plan", "attributes", "dry_run", "explain"}
	leaseFieldNames = []string{"subject", "resource", "plan", "attributes", "units"}
)

func (d *decoder) start(body []byte) {
	d.body, d.pos, d.text, d.errs, d.onlyPlans, d.entry = body, 0, d.text[:0], nil, true, -1
	d.lease = false
}

// decodeCheck decodes the body of a single check into req, which shares no memory with it.
func (d *decoder) decodeCheck(body []byte, req *check.Request) *Problem {
	d.start(body)
	if p := d.open(); p != nil {
		return p
	}
	if p := d.check(req, 1); p != nil {
		return p
	}
	if p := d.end(); p != nil {
		return p
	}
	return d.invalid()
}

// check decodes one check, an object at this depth.
func (d *decoder) check(req *check.Request, depth int) *Problem {
	f := &d.fields
	*f = checkFields{}
	d.pos++ // {
	for first := true; ; first = false {
		name, done, p := d.member(first)
		if p != nil {
			return p
		}
		if done {
			break
		}
		field := fieldNamed(name)
		switch {
		case d.lease && field&leaseFields == 0:
			return d.unknownField(name, leaseFieldNames)
		case !d.lease && field&^fieldUnits == 0:
			return d.unknownField(name, checkFieldNames)
		}
		if f.seen&field != 0 {
			return d.duplicateField(name)
		}
		f.seen |= field
		if p := d.value(f, field, depth); p != nil {
			return p
		}
	}
	if f.seen&fieldSubject == 0 {
		d.invalidField("subject", noSubject)
	}
	if d.errs == nil {
		f.copyTo(req)
	}
	return nil
}

// value decodes the value of one field of a check.
func (d *decoder) value(f *checkFields, field checkField, depth int) (p *Problem) {
	switch field {
	case fieldSubject:
		f.subject, p = d.nameValue("subject", depth)
	case fieldResource:
		f.resource, p = d.nameValue("resource", depth)
	case fieldCost:
		f.cost, p = d.costValue(depth)
	case fieldUnits:
		if f.cost, p = d.number64("units", badUnits, depth); p == nil && f.cost == 0 && d.errs == nil {
			d.invalidField("units", badUnits)
		}
	case fieldPlan:
		f.plan, p = d.planValue(depth)
	case fieldAttributes:
		p = d.attributes(f, depth)
	case fieldDryRun:
		f.dryRun, p = d.boolValue("dry_run", depth)
	case fieldExplain:
		f.explain, p = d.boolValue("explain", depth)
	}
	return p
}

// nameValue decodes a subject or a resource.
func (d *decoder) nameValue(field string, depth int) ([]byte, *Problem) {
	if d.peek() != '"' {
		return nil, d.wrong(field, notName, depth)
	}
	s, plain, p := d.str()
	if p == nil {
		if problem := nameProblem(s, plain); problem != nil {
			d.invalidField(field, problem)
		}
	}
	return s, p
}

// nameProblem is limit.ValidName, but faster for plain strings.
func nameProblem(s []byte, plain bool) *limit.Problem {
	if plain && len(s) >= 1 && len(s) <= limit.MaxNameBytes {
		return nil
	}
	return limit.ValidName(string(s))
}

func (d *decoder) costValue(depth int) (int64, *Problem) { return d.number64("cost", badCost, depth) }

// number64 decodes a number from 0 to maxCost. Only digits are allowed, so that no number is ever
// rounded.
func (d *decoder) number64(field string, wrong *limit.Problem, depth int) (int64, *Problem) {
	if c := d.peek(); c != '-' && (c < '0' || c > '9') {
		return 0, d.wrong(field, wrong, depth)
	}
	literal, p := d.number()
	if p != nil {
		return 0, p
	}
	var n int64
	for _, c := range literal {
		if c < '0' || c > '9' || n > maxCost {
			n = maxCost + 1
			break
		}
		n = n*10 + int64(c-'0')
	}
	if n > maxCost {
		d.invalidField(field, wrong)
	}
	return n, nil
}

// planValue decodes the slug of a plan. The policy knows whether the plan exists. "" means no plan
// elsewhere, so it is refused here, with the same message.
func (d *decoder) planValue(depth int) ([]byte, *Problem) {
	if d.peek() != '"' {
		return nil, d.wrong("plan", badPlan, depth)
	}
	s, _, p := d.str()
	if p == nil && len(s) == 0 {
		d.note("plan", badPlan)
	}
	return s, p
}

func (d *decoder) boolValue(field string, depth int) (bool, *Problem) {
	switch d.peek() {
	case 't':
		return true, d.literal("true")
	case 'f':
		return false, d.literal("false")
	}
	return false, d.wrong(field, notBoolean, depth)
}

// attributes decodes the object of attributes.
func (d *decoder) attributes(f *checkFields, depth int) *Problem {
	if d.peek() != '{' {
		return d.wrong("attributes", notStrings, depth)
	}
	var rest map[string]bool // names after the 16th: they are refused, but duplicates among them come first
	d.pos++                  // {
	n := 0
	for ; ; n++ {
		name, done, p := d.member(n == 0)
		if p != nil {
			return p
		}
		if done {
			break
		}
		if n >= limit.MaxAttributes+maxComparedNames {
			if p := d.skip(depth + 1); p != nil {
				return p
			}
			continue
		}
		for i := range f.attributeCount {
			if bytes.Equal(f.attributes[i].name, name) {
				return d.duplicateField([]byte("attributes"), name)
			}
		}
		if rest[string(name)] {
			return d.duplicateField([]byte("attributes"), name)
		}
		if n >= limit.MaxAttributes {
			if rest == nil {
				rest = make(map[string]bool)
			}
			rest[string(name)] = true
			if p := d.skip(depth + 1); p != nil {
				return p
			}
			continue
		}
		value, p := d.attributeValue(name, depth+1)
		if p != nil {
			return p
		}
		f.attributes[n].name, f.attributes[n].value = name, value
		f.attributeCount++
	}
	if n > limit.MaxAttributes {
		d.invalidField("attributes", tooManyAttributes)
	}
	return nil
}

func (d *decoder) attributeValue(name []byte, depth int) ([]byte, *Problem) {
	if !limit.ValidAttributeName(name) {
		d.invalidField(attributePath(name), badAttributeName)
		return nil, d.skip(depth)
	}
	if d.peek() != '"' {
		return nil, d.wrong(attributePath(name), notName, depth)
	}
	value, plain, p := d.str()
	if p == nil {
		if problem := nameProblem(value, plain); problem != nil {
			d.invalidField(attributePath(name), problem)
		}
	}
	return value, p
}

func attributePath(name []byte) string { return "attributes/" + pointerToken(name) }

// copyTo converts the fields to a Request, with all its strings in one allocation of exactly their
// size, because they may be kept for long after the body is released.
func (f *checkFields) copyTo(req *check.Request) {
	size := len(f.subject) + len(f.resource) + len(f.plan)
	attributes := f.attributes[:f.attributeCount]
	for i := range attributes {
		size += len(attributes[i].name) + len(attributes[i].value)
	}
	var b strings.Builder
	b.Grow(size)
	take := func(s []byte) string {
		from := b.Len()
		b.Write(s)
		return b.String()[from:]
	}
	*req = check.Request{
		Subject: take(f.subject), Resource: defaultResource, Cost: 1, Plan: take(f.plan),
		DryRun: f.dryRun, Explain: f.explain,
	}
	if f.seen&fieldResource != 0 {
		req.Resource = take(f.resource)
	}
	if f.seen&(fieldCost|fieldUnits) != 0 {
		req.Cost = f.cost
	}
	if len(attributes) > 0 {
		req.Attributes = make([]check.Attribute, len(attributes))
		for i := range attributes {
			req.Attributes[i] = check.Attribute{Name: take(attributes[i].name), Value: take(attributes[i].value)}
		}
	}
}

// note records an invalid field, by its path in the check.
func (d *decoder) note(path string, problem *limit.Problem) {
	if len(d.errs) < maxFieldErrors {
		d.errs = append(d.errs, wrongField(d.pointer(path), problem))
	}
}

func (d *decoder) invalidField(path string, problem *limit.Problem) {
	d.onlyPlans = false
	d.note(path, problem)
}

func (d *decoder) pointer(path string) string {
	pointer := ""
	if d.entry >= 0 {
		pointer = "/checks/" + itoa(int64(d.entry))
	}
	if path != "" {
		pointer += "/" + path
	}
	return pointer
}

// wrong skips a value of an invalid type and records the problem.
func (d *decoder) wrong(path string, problem *limit.Problem, depth int) *Problem {
	if p := d.skip(depth); p != nil {
		return p
	}
	if path == "plan" {
		d.note(path, problem)
	} else {
		d.invalidField(path, problem)
	}
	return nil
}

// invalid returns the problem with all recorded fields, or nil.
func (d *decoder) invalid() *Problem {
	switch {
	case d.errs == nil:
		return nil
	case d.onlyPlans:
		return unknownPlan(d.errs...)
	}
	return invalid(d.errs...)
}

// unknownPlan is the answer for every plan that the tenant does not have: misspelled, malformed, or
// of another tenant.
func unknownPlan(fields ...ProblemField) *Problem {
	p := newProblem(http.StatusUnprocessableEntity, codeUnknownPlan, fieldsDetail(fields))
	p.Errors = fields
	return p
}

func (d *decoder) unknownField(name []byte, known []string) *Problem {
	names := strings.Join(known, ", ")
	field := wrongField(d.pointer(pointerToken(name)), limit.Wrong("Omit it, or use one of "+names+".", "is not a field here; known are %s", names))
	for _, k := range known {
		if strings.EqualFold(k, string(name)) {
			field.Fix = "Write it " + k + "."
		}
	}
	return badField(codeUnknownField, field)
}

func (d *decoder) duplicateField(path ...[]byte) *Problem {
	tokens := make([]string, len(path))
	for i := range path {
		tokens[i] = pointerToken(path[i])
	}
	return badField(codeDuplicateField, wrongField(d.pointer(strings.Join(tokens, "/")), limit.Duplicate))
}

func badField(code string, field ProblemField) *Problem {
	p := newProblem(http.StatusBadRequest, code, fieldsDetail([]ProblemField{field}))
	p.Errors = []ProblemField{field}
	return p
}

// pointerToken converts a member's name to a token of a JSON pointer. A long name is truncated.
func pointerToken(name []byte) string {
	const most = 64
	if len(name) > most {
		cut := most
		for !utf8.RuneStart(name[cut]) {
			cut--
		}
		return escapePointer(string(name[:cut])) + "..."
	}
	return escapePointer(string(name))
}
