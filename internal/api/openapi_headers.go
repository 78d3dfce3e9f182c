package api

import (
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/tenants"
)

// The answer of net/http itself, before any handler runs.
const headTooLarge = "The request line and the headers together exceed 16 KiB, or 100 lines. " +
	"Plain text, without a request id, and the connection is closed"

// describeAnswers adds the common parts to every operation that huma does not know: the headers of
// answers, and the answer to a head that is too large.
func describeAnswers(doc *huma.OpenAPI) {
	for _, item := range doc.Paths {
		for _, op := range operationsOf(item) {
			for status, response := range op.Responses {
				describeHeaders(op, status, response)
			}
			op.Responses["431"] = &huma.Response{
				Description: headTooLarge,
				Content:     map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}},
			}
		}
	}
}

func describeHeaders(op *huma.Operation, status string, response *huma.Response) {
	if response.Headers == nil {
		response.Headers = map[string]*huma.Param{}
	}
	add := func(name, description string) {
		if response.Headers[name] == nil {
			response.Headers[name] = &huma.Param{Description: description, Schema: &huma.Schema{Type: huma.TypeString}}
		}
	}
	add("X-Request-Id", "Id of the request, also in the log: the sent one, if it is 1 to 128 of A-Z, a-z, 0-9, - _ . and :, otherwise a new one")
	replays := slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == idempotencyHeader })
	if replays && !slices.Contains(op.Tags, "check") { // the answer to a check has this in its body
		add(replayedHeader, "true if this is the stored answer to the first request with the same Idempotency-Key")
	}
	switch status {
	case "201":
		add("Location", "Path of the created object")
	case "401":
		add("WWW-Authenticate", "How to authenticate (RFC 9110)")
	case "415":
		if op.Method == http.MethodPatch {
			add("Accept-Patch", "The supported media types (RFC 5789)")
		}
	case "429", "503":
		if status == "429" && op.Metadata != nil && scopeOf(op) != tenants.ScopeRead {
			response.Description = "The tenant exceeded its write rate, or the maximum number of such operations is running"
		}
		add("Retry-After", "Seconds to wait, if a wait helps")
	}
	if status == "409" && (replays || op.Path == leasesPath) {
		add("Retry-After", "Seconds to wait, if a wait helps")
	}
}

// describeLimitHeaders adds the headers of a decision; WEIR_HEADERS selects them.
func describeLimitHeaders(response *huma.Response) {
	if response.Headers == nil {
		response.Headers = map[string]*huma.Param{}
	}
	for name, description := range map[string]string{
		"RateLimit-Policy":      "Structured list of the rules that enforce a limit: quota q, window w in seconds (draft-ietf-httpapi-ratelimit-headers, revision 11)",
		"RateLimit":             "Structured list of the same rules: remaining units (r), and the seconds until there are more (t)",
		"X-RateLimit-Limit":     "Quota of the deciding rule",
		"X-RateLimit-Remaining": "Its remaining units",
		"X-RateLimit-Reset":     "Unix time in seconds at which its full quota is available again",
		"Retry-After":           "Seconds to wait, on a denial that a wait can resolve",
	} {
		response.Headers[name] = &huma.Param{Description: description, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	describeWarningHeaders(response)
}

// describeWarningHeaders adds the headers of warnings, overage and credits to an answer with a
// decision.
func describeWarningHeaders(response *huma.Response) {
	for name, description := range map[string]string{
		warningHeader: "The enforcing rules with a warning, separated by commas; absent if there are none",
		overageHeader: "The enforcing rules that are beyond their limit, separated by commas; absent if there are none",
		creditsHeader: "The enforcing rules beyond whose limit the check spent credits, separated by commas; absent if there are none",
	} {
		response.Headers[name] = &huma.Param{Description: description, Schema: &huma.Schema{Type: huma.TypeString}}
	}
}

// describeDecisionHeader adds the header that distinguishes a decision from other answers. decided
// describes its value on a decision.
func describeDecisionHeader(op *huma.Operation, decided string) {
	for status, response := range op.Responses {
		if response.Headers == nil {
			response.Headers = map[string]*huma.Param{}
		}
		description := "none: nothing was decided about the subject, and nothing was counted"
		if status == "200" || status == "204" || status == "429" || op.Path == authorizePath && status == "403" {
			description = decided + "; none on a problem document, which says that nothing was decided or counted"
		}
		response.Headers[decisionHeader] = &huma.Param{
			Description: description,
			Schema:      &huma.Schema{Type: huma.TypeString, Enum: []any{decisionAllow, decisionDeny, decisionNone}},
		}
	}
}
