package weir

import (
	"strconv"
	"strings"
)

// Codes of denials and misuse for which a program may branch. A server may send others.
const (
	CodeRateLimitExceeded   = "RATE_LIMIT_EXCEEDED"
	CodeCostExceedsLimit    = "COST_EXCEEDS_LIMIT"
	CodeSubjectBlocked      = "SUBJECT_BLOCKED"
	CodeAttributeMissing    = "ATTRIBUTE_MISSING"
	CodeCountersUnavailable = "COUNTERS_UNAVAILABLE"
	CodeLimiterUnavailable  = "LIMITER_UNAVAILABLE" // the fallback Deny answered

	codeInvalidRequest = "INVALID_REQUEST"
)

// A MisuseError is a mistake of the caller: a wrong key, an unknown plan, an invalid subject.
// Nothing was decided and nothing was counted. It is never turned into a fallback, because a
// mistake must not switch the limiter off.
type MisuseError struct {
	Status    int    // the HTTP status; 0 if the client refused the call and sent nothing
	Code      string // a stable name such as UNKNOWN_PLAN; empty if the answer was not a problem document
	Field     string // a JSON pointer to the first wrong field, such as /subject; may be empty
	Fix       string // what to do about it; may be empty
	Detail    string // what is wrong, for people
	RequestID string // id of the request, as in the server's log
	Errors    []FieldError
}

// A FieldError points at one wrong field.
type FieldError struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

func (e *MisuseError) Error() string {
	var b strings.Builder
	b.WriteString("weir: ")
	if e.Status != 0 {
		b.WriteString("status " + strconv.Itoa(e.Status) + ": ")
	}
	switch {
	case e.Detail != "":
		if e.Code != "" {
			b.WriteString(e.Code + ": ")
		}
		b.WriteString(e.Detail)
	case e.Code != "":
		b.WriteString(e.Code)
	default:
		b.WriteString("the answer is not from Weir; check the URL")
	}
	if e.Fix != "" {
		b.WriteString(" " + e.Fix)
	}
	return b.String()
}

// A Cause is the reason for which there is no decision.
type Cause string

// The causes.
const (
	CauseTimeout           Cause = "timeout"            // no complete answer within the timeout
	CauseConnectionRefused Cause = "connection_refused" // the address refuses connections
	CauseConnectionLost    Cause = "connection_lost"    // any other failure of the connection
	CauseServerError       Cause = "server_error"       // status 5xx
	CauseQuotaExceeded     Cause = "quota_exceeded"     // the tenant is over its own quota of checks
	CauseInvalidAnswer     Cause = "invalid_answer"     // an answer that is neither a decision nor misuse
	CauseBreakerOpen       Cause = "breaker_open"       // the circuit breaker is open; nothing was sent
)

// NoDecision says why there is no decision of the server.
type NoDecision struct {
	Cause        Cause
	Status       int    // the HTTP status; 0 if there was no answer
	Code         string // the problem's code, such as OVERLOADED; may be empty
	RetryAfterMS Number // from Retry-After
	Err          error  // the error of the network, or what is wrong with the answer; may be nil

	callersDeadline bool // not a failure of the server
}

func (n *NoDecision) Error() string {
	s := "weir: no decision: " + string(n.Cause)
	if n.Status != 0 {
		s += ", status " + strconv.Itoa(n.Status)
	}
	if n.Code != "" {
		s += ", " + n.Code
	}
	if n.Err != nil {
		s += ": " + n.Err.Error()
	}
	return s
}

// Unwrap returns the underlying error, or nil.
func (n *NoDecision) Unwrap() error { return n.Err }

// fails reports whether this counts as a failure for the circuit breaker.
func (n *NoDecision) fails() bool {
	return n.Cause != CauseQuotaExceeded && n.Cause != CauseBreakerOpen
}
