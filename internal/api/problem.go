package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"weir/internal/limit"
)

// The codes of problem documents. A code is stable: programs branch on it. Each has a title in
// problemTitles and a page docs/errors/CODE.md (lower case, with hyphens).
const (
	codeMalformedJSON          = "MALFORMED_JSON"
	codeMalformedYAML          = "MALFORMED_YAML"
	codeMalformedCSV           = "MALFORMED_CSV"
	codeMalformedMessage       = "MALFORMED_MESSAGE"
	codeMalformedRequest       = "MALFORMED_REQUEST"
	codeHeadersTooLarge        = "HEADERS_TOO_LARGE"
	codeUnknownField           = "UNKNOWN_FIELD"
	codeDuplicateField         = "DUPLICATE_FIELD"
	codeUnknownParameter       = "UNKNOWN_PARAMETER"
	codeInvalidCursor          = "INVALID_CURSOR"
	codeMalformedQuery         = "MALFORMED_QUERY"
	codeInvalidHeader          = "INVALID_HEADER"
	codeMissingKey             = "MISSING_KEY"
	codeMalformedKey           = "MALFORMED_KEY"
	codeUnknownKey             = "UNKNOWN_KEY"
	codeKeyRevoked             = "KEY_REVOKED"
	codeKeyExpired             = "KEY_EXPIRED"
	codeKeyRotated             = "KEY_ROTATED"
	codeTenantSuspended        = "TENANT_SUSPENDED"
	codeInsufficientScope      = "INSUFFICIENT_SCOPE"
	codeGrantExceeded          = "GRANT_EXCEEDED"
	codeAddressNotAllowed      = "ADDRESS_NOT_ALLOWED"
	codeResourceNotAllowed     = "RESOURCE_NOT_ALLOWED"
	codeOperatorOnly           = "OPERATOR_ONLY"
	codeOwnersOnly             = "OWNERS_ONLY"
	codeNotFound               = "NOT_FOUND"
	codeMethodNotAllowed       = "METHOD_NOT_ALLOWED"
	codeConflict               = "CONFLICT"
	codeSlugTaken              = "SLUG_TAKEN"
	codeReferenceUsed          = "CREDIT_REFERENCE_USED"
	codeDefaultPlan            = "DEFAULT_PLAN"
	codePlanInUse              = "PLAN_IN_USE"
	codeTooManyPlanVersions    = "TOO_MANY_PLAN_VERSIONS"
	codeMigrationRunning       = "MIGRATION_RUNNING"
	codeMigrationEnded         = "MIGRATION_ENDED"
	codeKeyNotActive           = "KEY_NOT_ACTIVE"
	codePlatformTenant         = "PLATFORM_TENANT"
	codeLastOwner              = "LAST_OWNER"
	codeMemberExists           = "MEMBER_EXISTS"
	codeIdempotencyKeyInUse    = "IDEMPOTENCY_KEY_IN_USE"
	codeRequestTimeout         = "REQUEST_TIMEOUT"
	codePreconditionFailed     = "PRECONDITION_FAILED"
	codeBodyTooLarge           = "BODY_TOO_LARGE"
	codeUnsupportedMediaType   = "UNSUPPORTED_MEDIA_TYPE"
	codeInvalidRequest         = "INVALID_REQUEST"
	codeUnknownPlan            = "UNKNOWN_PLAN"
	codeIdempotencyKeyReused   = "IDEMPOTENCY_KEY_REUSED"
	codeTenantQuotaExceeded    = "TENANT_QUOTA_EXCEEDED"
	codeTenantRecordsExceeded  = "TENANT_RECORDS_EXCEEDED"
	codeTierExceeded           = "TIER_EXCEEDED"
	codeWriteRateExceeded      = "WRITE_RATE_EXCEEDED"
	codeBulkBusy               = "BULK_BUSY"
	codeTooManyStreams         = "TOO_MANY_STREAMS"
	codeSimulationBusy         = "SIMULATION_BUSY"
	codeSimulationTooLarge     = "SIMULATION_TOO_LARGE"
	codeInvalidSignature       = "INVALID_SIGNATURE"
	codeMalformedEvent         = "MALFORMED_EVENT"
	codeSigningSecretMissing   = "SIGNING_SECRET_MISSING"
	codeWrongMode              = "WRONG_MODE"
	codeWebhookRateExceeded    = "WEBHOOK_RATE_EXCEEDED"
	codeWebhookVolumeExceeded  = "WEBHOOK_VOLUME_EXCEEDED"
	codeTrailFull              = "AUDIT_VOLUME_EXCEEDED"
	codeLoginRateExceeded      = "LOGIN_RATE_EXCEEDED"
	codeInvitationRateExceeded = "INVITATION_RATE_EXCEEDED"
	codeEncryptionKeyMissing   = "ENCRYPTION_KEY_MISSING"
	codeInternal               = "INTERNAL"
	codeKeyLookupUnavailable   = "KEY_LOOKUP_UNAVAILABLE"
	codePolicyUnavailable      = "POLICY_UNAVAILABLE"
	codeConfigurationStoreAway = "STORE_UNAVAILABLE"
	codeCountersUnavailable    = "COUNTERS_UNAVAILABLE"
	codeOverloaded             = "OVERLOADED"
	codeNotLeasable            = "NOT_LEASABLE"
	codeNotReady               = "NOT_READY"
)

// problemTitles describes each code in a few words.
var problemTitles = map[string]string{
	codeMalformedJSON:          "The body is not well-formed JSON",
	codeMalformedYAML:          "The body is not supported YAML",
	codeMalformedCSV:           "The body is not well-formed CSV",
	codeMalformedMessage:       "The message is not well-formed",
	codeMalformedRequest:       "The HTTP request is not well-formed",
	codeHeadersTooLarge:        "The headers of the request are too large",
	codeUnknownField:           "The body has an unknown field",
	codeDuplicateField:         "The body has a duplicate field",
	codeUnknownParameter:       "The query has an unknown parameter",
	codeInvalidCursor:          "The cursor is invalid",
	codeMalformedQuery:         "The query string is not well-formed",
	codeInvalidHeader:          "A header is invalid",
	codeMissingKey:             "An API key is required",
	codeMalformedKey:           "The API key is malformed",
	codeUnknownKey:             "The API key is unknown",
	codeKeyRevoked:             "The API key was revoked",
	codeKeyExpired:             "The API key has expired",
	codeKeyRotated:             "The API key was replaced",
	codeTenantSuspended:        "The tenant is suspended",
	codeInsufficientScope:      "The API key lacks a scope",
	codeGrantExceeded:          "A key cannot grant more than it has",
	codeAddressNotAllowed:      "The API key does not work from this address",
	codeResourceNotAllowed:     "The API key may not check this resource",
	codeOperatorOnly:           "Only the operator can do this",
	codeOwnersOnly:             "Only an owner can do this",
	codeNotFound:               "Not found",
	codeMethodNotAllowed:       "The path does not support this method",
	codeConflict:               "The request conflicts with the current state",
	codeSlugTaken:              "The slug is already in use",
	codeReferenceUsed:          "The reference granted other credits before",
	codeDefaultPlan:            "The plan is the default plan",
	codePlanInUse:              "The plan is in use",
	codeTooManyPlanVersions:    "The plan has too many versions",
	codeMigrationRunning:       "Another migration of the plan has not ended",
	codeMigrationEnded:         "The migration has ended",
	codeKeyNotActive:           "The API key is no longer active",
	codePlatformTenant:         "The operator's tenant cannot be changed this way",
	codeLastOwner:              "A tenant needs an owner",
	codeMemberExists:           "The person is already a member",
	codeIdempotencyKeyInUse:    "The first request with this Idempotency-Key is still running",
	codeRequestTimeout:         "The request took too long to arrive",
	codePreconditionFailed:     "The object does not match If-Match",
	codeBodyTooLarge:           "The body is too large",
	codeUnsupportedMediaType:   "The media type of the body is not supported",
	codeInvalidRequest:         "The request is well-formed but not valid",
	codeUnknownPlan:            "The plan does not exist",
	codeIdempotencyKeyReused:   "The Idempotency-Key was used for another request",
	codeTenantQuotaExceeded:    "The tenant exceeded its own quota",
	codeTenantRecordsExceeded:  "The tenant has as many bytes of records as it may",
	codeTierExceeded:           "The tenant's tier does not allow this",
	codeWriteRateExceeded:      "The tenant exceeded its write rate",
	codeBulkBusy:               "Too many imports or exports are running",
	codeTooManyStreams:         "Too many streams are open",
	codeSimulationBusy:         "Too many simulations are running",
	codeSimulationTooLarge:     "The simulation is too large",
	codeInvalidSignature:       "The signature is not valid",
	codeMalformedEvent:         "The body is not an event",
	codeSigningSecretMissing:   "The endpoint has no signing secret",
	codeWrongMode:              "The event is of another mode",
	codeWebhookRateExceeded:    "The endpoint exceeded its rate of events",
	codeTrailFull:              "The changes of the tenant have added as much to its audit trail as they may in a day",
	codeWebhookVolumeExceeded:  "The tenant has stored as many billing events of this day as it may",
	codeLoginRateExceeded:      "Too many sign-ins",
	codeInvitationRateExceeded: "Too many invitations",
	codeEncryptionKeyMissing:   "The installation has no encryption key",
	codeInternal:               "Internal error",
	codeKeyLookupUnavailable:   "The API key cannot be verified now",
	codePolicyUnavailable:      "The tenant's rules cannot be loaded now",
	codeConfigurationStoreAway: "The configuration cannot be read or written now",
	codeCountersUnavailable:    "The counters are unavailable",
	codeOverloaded:             "Too many requests are in flight",
	codeNotLeasable:            "No units can be leased",
	codeNotReady:               "The instance is not ready",
}

// Problem is an error in the form for clients: an RFC 9457 problem document with a stable code.
type Problem struct {
	Type      string         `json:"type" format:"uri-reference" doc:"Page that explains the code"`
	Title     string         `json:"title" doc:"Short description of the code"`
	Status    int            `json:"status" doc:"The HTTP status"`
	Code      string         `json:"code" doc:"Stable name of the problem; programs branch on it"`
	Detail    string         `json:"detail,omitempty" doc:"What went wrong in this request, for people"`
	Instance  string         `json:"instance,omitempty" format:"uri-reference" doc:"The path of the request, at most its first 256 bytes"`
	RequestID string         `json:"request_id,omitempty" doc:"Id of the request, as in the log and in X-Request-Id"`
	Errors    []ProblemField `json:"errors,omitempty" nullable:"false" doc:"One entry per invalid field"`

	retryAfter int         // seconds; 0: no Retry-After
	header     http.Header // further headers, such as Allow
	cause      error       // for the log; never for the client
}

// ProblemField is one invalid field of the input.
type ProblemField struct {
	Pointer string `json:"pointer" doc:"JSON pointer into the body, such as /by/0; elsewhere query:NAME, path:NAME, header:NAME or rule:SLUG; in a file of lines, line:N and a pointer into the line"`
	Message string `json:"message" doc:"What is wrong, with the valid range or values"`
	Fix     string `json:"fix,omitempty" doc:"What to do"`

	unknown bool // the body has no such field: fixUnknown lists the known ones
}

// newProblem returns a problem. The code must be one of problemTitles; detail is shown to the
// client.
func newProblem(status int, code, detail string) *Problem {
	title, known := problemTitles[code]
	if !known {
		panic("api: problem code without a title: " + code)
	}
	return &Problem{Type: problemType(code), Title: title, Status: status, Code: code, Detail: detail}
}

// problemType returns the path of the code's page. It is relative, because the public address of
// the service is not known.
func problemType(code string) string { return "/docs/errors/" + problemSlug(code) }

func problemSlug(code string) string { return strings.ReplaceAll(strings.ToLower(code), "_", "-") }

// maxProblemFields limits the entries of one problem. A body of a megabyte can have a hundred
// thousand invalid fields, and the answer must not be larger than the request.
const maxProblemFields = 100

// invalid returns the 422 with the first maxProblemFields invalid fields.
func invalid(fields ...ProblemField) *Problem {
	p := newProblem(http.StatusUnprocessableEntity, codeInvalidRequest, fieldsDetail(fields))
	p.Errors = fields[:min(len(fields), maxProblemFields)]
	return p
}

// invalidHeader returns the 400 for a header.
func invalidHeader(name string, wrong *limit.Problem) *Problem {
	fields := []ProblemField{wrongField("header:"+name, wrong)}
	p := newProblem(http.StatusBadRequest, codeInvalidHeader, name+" "+wrong.Message+".")
	p.Errors = fields
	return p
}

// pathField changes an error of the store so that it points to the path, if the field is part of
// the path, such as the slug of a PUT. Other errors are unchanged.
func pathField(err error, pointer, name string) error {
	if err == nil {
		return nil
	}
	p := problemOf(err)
	if p.Status != http.StatusUnprocessableEntity {
		return err
	}
	moved := *p
	moved.Errors = slices.Clone(p.Errors)
	for i := range moved.Errors {
		if moved.Errors[i].Pointer == pointer {
			moved.Errors[i].Pointer = "path:" + name
		}
	}
	if len(moved.Errors) == 1 {
		moved.Detail = fieldsDetail(moved.Errors)
	}
	return &moved
}

func fieldsDetail(fields []ProblemField) string {
	switch len(fields) {
	case 0:
		return "The request is not valid."
	case 1:
		where := fields[0].Pointer
		kind, name, _ := strings.Cut(where, ":")
		switch { // a sentence for people: errors has the pointer
		case where == "": // the whole body
			where = "The body"
		case kind == "query":
			where = "The parameter " + name
		case kind == "path":
			where = "The " + name + " in the path"
		}
		return where + " " + fields[0].Message + "."
	default:
		detail := strconv.Itoa(len(fields)) + " fields are not valid; errors names "
		if len(fields) > maxProblemFields {
			return detail + strconv.Itoa(maxProblemFields) + " of them."
		}
		return detail + "them."
	}
}

// Error returns the problem in one line, for logs.
func (p *Problem) Error() string {
	s := p.Code
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	if p.cause != nil {
		s += ": " + p.cause.Error()
	}
	return s
}

// Unwrap returns the underlying error, or nil.
func (p *Problem) Unwrap() error { return p.cause }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of problem documents.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// withRetryAfter sets the number of seconds to wait.
func (p *Problem) withRetryAfter(seconds int) *Problem {
	p.retryAfter = seconds
	return p
}

// withHeader adds a header to the answer.
func (p *Problem) withHeader(name, value string) *Problem {
	if p.header == nil {
		p.header = http.Header{}
	}
	p.header.Add(name, value)
	return p
}

// maxInstance limits the instance of a problem, in bytes. A path may be much longer, and its
// characters can take several bytes in JSON.
const maxInstance = 256

// beginningOf returns at least the part of an escaped path that instanceOf keeps: to escape and
// compare the whole of a long one takes as long as to read the request.
func beginningOf(u *url.URL) string {
	const enough = 4 * maxInstance
	switch {
	case len(u.RawPath) > enough:
		raw := u.RawPath[:enough]
		if at := strings.LastIndexByte(raw, '%'); at > enough-len("%41") {
			raw = raw[:at]
		}
		if path, err := url.PathUnescape(raw); err == nil {
			return (&url.URL{Path: path, RawPath: raw}).EscapedPath()
		}
	case u.RawPath == "" && len(u.Path) > enough:
		return (&url.URL{Path: u.Path[:enough]}).EscapedPath()
	}
	return u.EscapedPath()
}

// instanceOf returns the path of a request, or its beginning without half an escaped byte.
func instanceOf(path string) string {
	if len(path) <= maxInstance {
		return path
	}
	path = path[:maxInstance]
	if escape := strings.LastIndexByte(path, '%'); escape > maxInstance-3 {
		path = path[:escape]
	}
	return path
}

// writeProblem answers r with p. It fills in the instance and the request id.
func writeProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	answer := *p
	answer.Instance = instanceOf(beginningOf(r.URL))
	if q := requestFrom(r.Context()); q != nil {
		answer.RequestID = q.id
		q.restBefore(p)
	}
	body, err := json.Marshal(&answer)
	if err != nil { // only strings and numbers: cannot fail
		panic(err)
	}
	h := w.Header()
	for name, values := range p.header {
		h[name] = values
	}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if h[decisionHeader] != nil {
		h[decisionHeader] = undecided
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // if this fails, the client has disconnected
	}
}
