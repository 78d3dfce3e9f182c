package weir

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Check asks whether the subject may do something now. Only Subject is required.
type Check struct {
	Subject    string            // what to limit: 1 to 256 bytes of UTF-8 without control characters
	Resource   string            // the resource; empty means "default"
	Cost       int64             // units to take; 0 means 1 (Peek sends cost 0)
	Plan       string            // the plan whose limits apply; empty means the subject's own
	Attributes map[string]string // at most 16 further values that rules can count by

	// IdempotencyKey makes it safe to send the check again: within 60 s, the same key gets the
	// first decision and counts once. 1 to 64 visible ASCII characters; empty means none.
	IdempotencyKey string
}

const (
	defaultResource   = "default"
	maxNameBytes      = 256
	maxCost           = 1_000_000_000_000_000
	maxAttributes     = 16
	maxAttributeName  = 64
	maxIdempotencyKey = 64
	maxBatch          = 100
	maxBatchBytes     = 256 << 10 // the server's limit for a batch
)

// A question is a valid check with its defaults filled in.
type question struct {
	Check
	dryRun  bool
	explain bool
}

// ask validates a check and fills in its defaults. If peek is true, the cost is 0.
func ask(check Check, peek bool) (question, *MisuseError) {
	if err := validate(&check, peek); err != nil {
		return question{}, err
	}
	if check.Resource == "" {
		check.Resource = defaultResource
	}
	switch {
	case peek:
		check.Cost = 0
	case check.Cost == 0:
		check.Cost = 1
	}
	return question{Check: check}, nil
}

func validate(check *Check, peek bool) *MisuseError {
	if problem := nameProblem(check.Subject); problem != "" {
		return invalid("/subject", problem, "Pass 1 to 256 bytes of UTF-8 without control characters. HashSubject shortens longer values and hides secrets.")
	}
	if check.Resource != "" {
		if problem := nameProblem(check.Resource); problem != "" {
			return invalid("/resource", problem, "Pass 1 to 256 bytes of UTF-8 without control characters.")
		}
	}
	if check.Cost < 0 || check.Cost > maxCost {
		return invalid("/cost", "is "+strconv.FormatInt(check.Cost, 10), "Pass a whole number from 0 to 1000000000000000.")
	}
	if peek && check.Cost != 0 {
		return invalid("/cost", "is "+strconv.FormatInt(check.Cost, 10)+" in a peek, which has cost 0", "Omit the cost.")
	}
	if err := validateAttributes(check.Attributes); err != nil {
		return err
	}
	if !validIdempotencyKey(check.IdempotencyKey) {
		return invalid("header:Idempotency-Key", "is "+strconv.Quote(check.IdempotencyKey), "Pass 1 to 64 visible ASCII characters.")
	}
	return nil
}

func validateAttributes(attributes map[string]string) *MisuseError {
	if len(attributes) > maxAttributes {
		return invalid("/attributes", "has "+strconv.Itoa(len(attributes))+" entries", "Pass at most 16 attributes.")
	}
	for name, value := range attributes {
		if !validAttributeName(name) {
			return invalid("/attributes/"+name, "is not the name of an attribute", "Use 1 to 64 of A-Z, a-z, 0-9, _ . - and neither subject nor resource.")
		}
		if problem := nameProblem(value); problem != "" {
			return invalid("/attributes/"+name, problem, "Pass 1 to 256 bytes of UTF-8 without control characters.")
		}
	}
	return nil
}

// nameProblem returns what is wrong with a subject, a resource or an attribute's value, or "".
func nameProblem(s string) string {
	if s == "" {
		return "is empty"
	}
	if len(s) > maxNameBytes {
		return "has " + strconv.Itoa(len(s)) + " bytes"
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return unusualNameProblem(s)
		}
	}
	return ""
}

// unusualNameProblem is nameProblem for names that are not plain ASCII.
func unusualNameProblem(s string) string {
	if !utf8.ValidString(s) {
		return "is not valid UTF-8"
	}
	for _, r := range s {
		if r < ' ' || r >= 0x7f && r <= 0x9f {
			return "contains the control character " + strconv.QuoteRuneToASCII(r)
		}
	}
	return ""
}

func validAttributeName(name string) bool {
	if name == "" || len(name) > maxAttributeName || name == "subject" || name == "resource" {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

func validIdempotencyKey(key string) bool {
	if len(key) > maxIdempotencyKey {
		return false
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return true
}

// appendJSON appends the question in the form that the server reads. Defaults are omitted.
func (q *question) appendJSON(b []byte) []byte {
	b = append(b, `{"subject":`...)
	b = appendString(b, q.Subject)
	if q.Resource != defaultResource {
		b = append(b, `,"resource":`...)
		b = appendString(b, q.Resource)
	}
	if q.Cost != 1 {
		b = append(b, `,"cost":`...)
		b = strconv.AppendInt(b, q.Cost, 10)
	}
	if q.Plan != "" {
		b = append(b, `,"plan":`...)
		b = appendString(b, q.Plan)
	}
	if len(q.Attributes) > 0 {
		b = append(b, `,"attributes":{`...)
		first := true
		for name, value := range q.Attributes {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = appendString(b, name)
			b = append(b, ':')
			b = appendString(b, value)
		}
		b = append(b, '}')
	}
	if q.dryRun {
		b = append(b, `,"dry_run":true`...)
	}
	if q.explain {
		b = append(b, `,"explain":true`...)
	}
	return append(b, '}')
}

// appendString appends s as a JSON string. Only a plan can contain invalid UTF-8. The server
// refuses it as an unknown plan.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// key returns a text that is the same for two questions if and only if the questions are equal:
// every part has its length in front, and attributes are sorted by name.
func (q *question) key() string {
	b := make([]byte, 0, 64+len(q.Subject)+len(q.Resource)+len(q.Plan))
	b = strconv.AppendInt(b, q.Cost, 10)
	b = appendPart(b, q.Subject)
	b = appendPart(b, q.Resource)
	b = appendPart(b, q.Plan)
	if len(q.Attributes) > 0 {
		names := make([]string, 0, len(q.Attributes))
		for name := range q.Attributes {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			b = appendPart(b, name)
			b = appendPart(b, q.Attributes[name])
		}
	}
	return string(b)
}

func appendPart(b []byte, part string) []byte {
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(part)), 10)
	b = append(b, ':')
	return append(b, part...)
}

// joinKey returns the key of several parts.
func joinKey(parts ...string) string {
	var b []byte
	for _, part := range parts {
		b = appendPart(b, part)
	}
	return string(b)
}

// invalid returns a misuse that the client detects before it sends anything.
func invalid(field, problem, fix string) *MisuseError {
	name := strings.TrimPrefix(strings.TrimPrefix(field, "header:"), "/")
	detail := name + " " + problem + "."
	return &MisuseError{Code: codeInvalidRequest, Field: field, Fix: fix, Detail: detail,
		Errors: []FieldError{{Pointer: field, Message: problem, Fix: fix}}}
}
