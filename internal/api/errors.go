package api

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"weir/internal/budget"
	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// storeRetryAfter is the Retry-After if Postgres is unavailable, in seconds.
const storeRetryAfter = 2

// failure is the answer for one error.
type failure struct {
	err    error
	status int
	code   string
	detail string
}

// failures maps errors to answers; the first match is used.
var failures = []failure{
	{tenants.ErrMalformedKey, http.StatusUnauthorized, codeMalformedKey, "The API key is truncated or mistyped: its checksum is wrong."},
	{tenants.ErrUnknownKey, http.StatusUnauthorized, codeUnknownKey, "The API key does not exist."},
	{tenants.ErrKeyRevoked, http.StatusUnauthorized, codeKeyRevoked, "The API key was revoked."},
	{tenants.ErrKeyExpired, http.StatusUnauthorized, codeKeyExpired, "The API key has expired."},
	{tenants.ErrKeyRotated, http.StatusUnauthorized, codeKeyRotated, "The API key was replaced by a rotation, and the overlap is over."},
	{tenants.ErrTenantSuspended, http.StatusUnauthorized, codeTenantSuspended, "The tenant of this API key is suspended."},
	{tenants.ErrKeyLookupUnavailable, http.StatusServiceUnavailable, codeKeyLookupUnavailable, "The API key cannot be verified now. It may be valid: try again."},
	{tenants.ErrWrongAddress, http.StatusForbidden, codeAddressNotAllowed, notFromThisAddress},
	{tenants.ErrNotOperator, http.StatusForbidden, codeOperatorOnly, "This operation requires an operator key."},
	{tenants.ErrNotPermitted, http.StatusForbidden, codeGrantExceeded, "A key cannot grant more than it has: another scope, a later expiry, or a membership, an endpoint or a link that could do more or would outlive the key."},
	{tenants.ErrOwnersOnly, http.StatusForbidden, codeOwnersOnly, "A key has the permissions of an admin. Once an owner has joined, only an owner can invite, change or remove owners, on the dashboard."},
	{tenants.ErrForbidden, http.StatusForbidden, codeInsufficientScope, "The API key lacks the scope of this operation."},
	{tenants.ErrNotFound, http.StatusNotFound, codeNotFound, "The tenant has no such object."},
	{tenants.ErrMissing, http.StatusPreconditionFailed, codePreconditionFailed, "The object does not exist. To create it, send the request without If-Match."},
	{tenants.ErrPreconditionFailed, http.StatusPreconditionFailed, codePreconditionFailed, "The object has changed. Read it again and apply your change to the current version."},
	{tenants.ErrUnavailable, http.StatusServiceUnavailable, codeConfigurationStoreAway, "The configuration is unavailable. Checks continue. Try again."},
	{tenants.ErrTooManyExports, http.StatusServiceUnavailable, codeOverloaded, "Only a few exports can be read at once, two of them by one tenant. Try again when one has ended."},
	{tenants.ErrTooManyLogos, http.StatusServiceUnavailable, codeOverloaded, "Only a few logos can be decoded at once, one of them of one tenant. Nothing was changed. Try again in a few seconds."},
	{tenants.ErrInterrupted, http.StatusServiceUnavailable, codeOverloaded, "Keys, members, billing, notifications or the tenant itself are being changed. Nothing was imported. Try again in a second."},
	{tenants.ErrTooManyReports, http.StatusServiceUnavailable, codeOverloaded, "Only a few usage reports can be computed at once, and the tenants take turns. Try again in a second."},
	{check.ErrTooManyPreviews, http.StatusServiceUnavailable, codeOverloaded, "Only a few previews of plans can run at once, one of them of one tenant. Try again when one has ended."},
	{check.ErrPolicyUnavailable, http.StatusServiceUnavailable, codePolicyUnavailable, "The tenant's rules are not in memory, and cannot be loaded now."},
	{check.ErrUnknownTenant, http.StatusUnauthorized, codeTenantSuspended, "The tenant of this API key is suspended."},
}

// problemOf converts an error to the problem document for a client. An unknown error is an internal
// error: 500, with the error in the log but not in the answer.
func problemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var wrong *tenants.InvalidError
	if errors.As(err, &wrong) {
		p := invalid(problemFields(wrong.Fields)...)
		if wrong.Tier {
			p.Code, p.Title, p.Type = codeTierExceeded, problemTitles[codeTierExceeded], problemType(codeTierExceeded)
		}
		return p
	}
	var lines *tenants.LinesError
	if errors.As(err, &lines) {
		return linesProblem(lines)
	}
	var conflict *tenants.ConflictError
	if errors.As(err, &conflict) {
		return conflictProblem(conflict)
	}
	var often *tenants.TooOftenError
	if errors.As(err, &often) && often.Why != "" {
		return newProblem(http.StatusTooManyRequests, codeTrailFull,
			sentence(often.Why)+" The day ends in UTC. Changes that revoke, rotate or delete are possible.").withRetryAfter(wholeSeconds(often.RetryAfter))
	}
	if often != nil {
		return newProblem(http.StatusTooManyRequests, codeWriteRateExceeded,
			"The tenant exceeded the write rate of this instance.").withRetryAfter(wholeSeconds(often.RetryAfter))
	}
	var invitations *tenants.InvitationsError
	if errors.As(err, &invitations) {
		return newProblem(http.StatusTooManyRequests, codeInvitationRateExceeded,
			"Too many invitations of this tenant, from this address, or of this person.").withRetryAfter(wholeSeconds(invitations.RetryAfter))
	}
	var full *budget.FullError
	if errors.As(err, &full) {
		return newProblem(http.StatusTooManyRequests, codeTenantRecordsExceeded,
			"The tenant has as many bytes of records in Redis as it may: answers of checks with an Idempotency-Key, kept for a minute, and leases. Nothing was counted. Checks without a key are answered.").withRetryAfter(wholeSeconds(full.Wait))
	}
	for _, f := range failures {
		if !errors.Is(err, f.err) {
			continue
		}
		p := newProblem(f.status, f.code, f.detail)
		p.cause = err
		switch f.status {
		case http.StatusServiceUnavailable:
			p.retryAfter = storeRetryAfter
		case http.StatusUnauthorized:
			p.withHeader("Www-Authenticate", challenge)
		}
		return p
	}
	p = internalProblem()
	p.cause = err
	return p
}

func conflictProblem(c *tenants.ConflictError) *Problem {
	code := c.Code
	if _, known := problemTitles[code]; !known {
		code = codeConflict
	}
	return newProblem(http.StatusConflict, code, sentence(c.Detail))
}

func problemFields(fields []limit.FieldError) []ProblemField {
	out := make([]ProblemField, len(fields))
	for i, f := range fields {
		out[i] = ProblemField{Pointer: jsonPointer(f.Field), Message: f.Message, Fix: f.Fix}
	}
	return out
}

// wholeSeconds rounds up, because a client that retries too early is refused again.
func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// sentence converts the text of a store's error to a sentence.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + strings.TrimSuffix(s[1:], ".") + "."
}

// queryErrors changes the store's errors about fields of a filter so that they point to query
// parameters. Other errors are unchanged.
func queryErrors(err error) error {
	var wrong *tenants.InvalidError
	if !errors.As(err, &wrong) {
		return err
	}
	fields := problemFields(wrong.Fields)
	for i := range fields {
		fields[i].Pointer = "query:" + wrong.Fields[i].Field
	}
	return invalid(fields...)
}

// internalProblem is the answer to an internal error.
func internalProblem() *Problem {
	return newProblem(http.StatusInternalServerError, codeInternal,
		"The service failed on this request. The error is logged under its request id.")
}
