package api

import (
	"bytes"
	"net/http"
	"strconv"

	"weir/internal/check"
	"weir/internal/limit"
)

// maxStructuredInt is the maximum integer of a structured field (RFC 9651).
const maxStructuredInt = 999_999_999_999_999

// headerWriter builds the rate-limit headers of one decision. All their text is in one buffer,
// which becomes one string at the end.
type headerWriter struct {
	buf   []byte
	ends  [len(headerNames)]int
	names [len(headerNames)]string
	count int
}

// headerNames are the headers that a headerWriter can write, with their usual spelling, in the
// order in which net/http sends them. HTTP/1 sends the keys of the map unchanged, and letter case
// has no meaning in HTTP.
var headerNames = [...]string{
	"RateLimit", "RateLimit-Policy", "Retry-After", creditsHeader, decisionHeader, overageHeader, warningHeader, "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
}

// decisionHeader is in every answer of the hot endpoints, including problem documents. It
// distinguishes a denial from an answer without a decision. The status does not, because 429 can
// also mean that the tenant is over its own quota.
const decisionHeader = "Weir-Decision"

// warningHeader lists the enforcing rules of which more than warn_at of the limit is used. It is
// absent if there are none.
const warningHeader = "Weir-Warning"

// overageHeader lists the enforcing rules that are beyond their limit and allow it. It is absent if
// there are none.
const overageHeader = "Weir-Overage"

// creditsHeader lists the enforcing rules beyond whose limit the check has spent credits. It is
// absent if there are none.
const creditsHeader = "Weir-Credits"

// The values of decisionHeader.
const (
	decisionAllow = "allow"
	decisionDeny  = "deny"
	decisionNone  = "none" // nothing was decided, and nothing was counted
)

// undecided is the header of an answer until a decision exists.
var undecided = []string{decisionNone}

// Headers of every answer except those of the hot endpoints; the second one over TLS only.
var (
	noSniff         = []string{"nosniff"}
	strictTransport = []string{"max-age=31536000"}
)

// isHot reports whether a path is that of a hot endpoint.
func isHot(path string) bool {
	return path == "/v1/check" || path == "/check" || path == "/v1/check/batch" || path == leasesPath || isAuthorize(path)
}

// write sets the headers. values is memory for them that lives as long as the answer.
func (h *headerWriter) write(header http.Header, values []string) {
	text := string(h.buf)
	from := 0
	for i := range h.count {
		values[i] = text[from:h.ends[i]]
		header[h.names[i]] = values[i : i+1 : i+1]
		from = h.ends[i]
	}
}

// build stores the headers of a decision in h.
//
// The two fields of the draft are lists of quoted strings that name rules
// (draft-ietf-httpapi-ratelimit-headers, revision 11). For every rule that enforces a limit they
// have its quota q and window w in seconds, the remaining units r, and the seconds t until there
// are more (omitted if the full quota is available).
//
// If others were decided in the same request, their warnings are added.
func (h *headerWriter) build(style HeaderStyle, d *check.Decision, others ...check.Decision) {
	h.buf, h.count = h.buf[:0], 0
	deciding := decidingRule(d)
	if style.Draft {
		h.states(d.Rules)
		h.policies(d.Rules)
	}
	if wait, curable := retryAfter(d); curable {
		h.number("Retry-After", wait)
	}
	h.list(creditsHeader, isPaid, d, others)
	h.decision(d.Allowed)
	h.list(overageHeader, isOver, d, others)
	h.list(warningHeader, isWarned, d, others)
	if style.X && deciding != nil {
		h.number("X-RateLimit-Limit", deciding.Quota)
		if !deciding.Uncounted {
			h.number("X-RateLimit-Remaining", deciding.Remaining)
			h.number("X-RateLimit-Reset", ceilSeconds(d.NowMS+deciding.ResetAfterMS))
		}
	}
}

func (h *headerWriter) policies(rules []check.RuleDecision) {
	from := len(h.buf)
	for i := range rules {
		r := &rules[i]
		if !enforced(r) {
			continue
		}
		h.item(from, r)
		h.param(";q=", r.Quota)
		h.param(";w=", ceilSeconds(r.WindowMS))
	}
	h.end("RateLimit-Policy", from)
}

func (h *headerWriter) states(rules []check.RuleDecision) {
	from := len(h.buf)
	for i := range rules {
		r := &rules[i]
		if !enforced(r) || r.Uncounted {
			continue
		}
		h.item(from, r)
		h.param(";r=", r.Remaining)
		if more := moreAfterMS(r); more > 0 {
			h.param(";t=", ceilSeconds(more))
		}
	}
	h.end("RateLimit", from)
}

// moreAfterMS returns when more units than now will be available. A denied check needs more than
// remains, so this is not later than its wait: t must not exceed Retry-After.
func moreAfterMS(r *check.RuleDecision) int64 {
	if r.Allowed || r.RetryAfterMS == limit.NeverMS {
		return r.NextAfterMS
	}
	return min(r.NextAfterMS, r.RetryAfterMS)
}

// enforced reports whether a rule limits the subject. Rules in shadow mode and unlimited rules are
// not shown to customers.
func enforced(r *check.RuleDecision) bool { return r.Mode == limit.Enforce && !r.Unlimited }

// item begins a member of a list that begins at from. A slug needs no escaping.
func (h *headerWriter) item(from int, r *check.RuleDecision) {
	if len(h.buf) > from {
		h.buf = append(h.buf, ", "...)
	}
	h.buf = append(h.buf, '"')
	h.buf = append(h.buf, r.Rule.Slug...)
	h.buf = append(h.buf, '"')
}

func (h *headerWriter) param(name string, n int64) {
	h.buf = append(h.buf, name...)
	h.buf = strconv.AppendInt(h.buf, min(n, maxStructuredInt), 10)
}

// buildBatch stores the headers of a batch in h. Rate-limit headers could describe only one of its
// checks.
func (h *headerWriter) buildBatch(decisions []check.Decision) {
	h.buf, h.count = h.buf[:0], 0
	allowed := true
	for i := range decisions {
		allowed = allowed && decisions[i].Allowed
	}
	h.list(creditsHeader, isPaid, &decisions[0], decisions[1:])
	h.decision(allowed)
	h.list(overageHeader, isOver, &decisions[0], decisions[1:])
	h.list(warningHeader, isWarned, &decisions[0], decisions[1:])
}

func isWarned(r *check.RuleDecision) bool { return r.Warning }
func isOver(r *check.RuleDecision) bool   { return r.Overage > 0 }
func isPaid(r *check.RuleDecision) bool   { return r.CreditsSpent > 0 }

// list writes the header that lists the enforcing rules of some decisions for which is holds, each
// once.
func (h *headerWriter) list(name string, is func(*check.RuleDecision) bool, first *check.Decision, others []check.Decision) {
	from := len(h.buf)
	h.add(from, is, first)
	for i := range others {
		h.add(from, is, &others[i])
	}
	h.end(name, from)
}

// add adds the rules of a decision to the list that begins at from.
func (h *headerWriter) add(from int, is func(*check.RuleDecision) bool, d *check.Decision) {
	if !d.Warning && !d.Overage && !d.Credits { // as nearly all
		return
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		if !is(r) || !enforced(r) || listed(h.buf[from:], r.Rule.Slug) {
			continue
		}
		if len(h.buf) > from {
			h.buf = append(h.buf, ", "...)
		}
		h.buf = append(h.buf, r.Rule.Slug...)
	}
}

// listed reports whether a list of slugs has one.
func listed(list []byte, slug string) bool {
	for len(list) > 0 {
		item, rest, _ := bytes.Cut(list, []byte(", "))
		if string(item) == slug {
			return true
		}
		list = rest
	}
	return false
}

func (h *headerWriter) decision(allowed bool) {
	from := len(h.buf)
	if allowed {
		h.buf = append(h.buf, decisionAllow...)
	} else {
		h.buf = append(h.buf, decisionDeny...)
	}
	h.end(decisionHeader, from)
}

func (h *headerWriter) number(name string, n int64) {
	from := len(h.buf)
	h.buf = strconv.AppendInt(h.buf, n, 10)
	h.end(name, from)
}

// end converts what was written since from to a header; if nothing was written, there is no header.
func (h *headerWriter) end(name string, from int) {
	if len(h.buf) > from {
		h.names[h.count], h.ends[h.count] = name, len(h.buf)
		h.count++
	}
}
