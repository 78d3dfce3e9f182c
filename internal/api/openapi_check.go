package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// The types in this file describe the bodies of a check in the OpenAPI document. check_decode.go
// and check_encode.go decode and encode by hand, for speed. Tests compare their answers with this
// description.

// CheckRequest is the body of POST /v1/check.
type CheckRequest struct {
	Subject    string            `json:"subject" minLength:"1" maxLength:"256" doc:"What to limit: 1 to 256 bytes of UTF-8 without control characters"`
	Resource   string            `json:"resource,omitempty" minLength:"1" maxLength:"256" default:"default" doc:"What the subject wants to use: 1 to 256 bytes"`
	Cost       int64             `json:"cost,omitempty" minimum:"0" maximum:"1000000000000000" default:"1" doc:"Units to take; 0 consumes nothing"`
	Plan       string            `json:"plan,omitempty" doc:"Slug of a plan; default: the subject's plan, else the tenant's default plan"`
	Attributes map[string]string `json:"attributes,omitempty" maxProperties:"16" doc:"Further values that rules can count by"`
	DryRun     bool              `json:"dry_run,omitempty" doc:"Answer what would happen, and consume nothing"`
	Explain    bool              `json:"explain,omitempty" doc:"List every rule that was not evaluated, with the reason"`
}

// CheckBatch is the body of POST /v1/check/batch.
type CheckBatch struct {
	Checks []CheckRequest `json:"checks" minItems:"1" maxItems:"100" doc:"Decided one by one, in order"`
}

// CheckAnswer is a decision.
type CheckAnswer struct {
	Allowed      bool          `json:"allowed"`
	Subject      string        `json:"subject"`
	Resource     string        `json:"resource"`
	Cost         int64         `json:"cost"`
	Plan         *string       `json:"plan" doc:"The plan whose limits applied; null if the tenant has none"`
	Rule         *string       `json:"rule" doc:"The deciding rule, which the next fields describe; null if no enforcing rule with a limit matched"`
	Limit        *int64        `json:"limit" doc:"Units per window"`
	Remaining    *int64        `json:"remaining" doc:"Units left"`
	RetryAfterMS *int64        `json:"retry_after_ms" doc:"Milliseconds until the same check would be allowed; 0 if it is, null if no wait helps"`
	ResetAfterMS *int64        `json:"reset_after_ms" doc:"Milliseconds until the full quota is available again"`
	DelayMS      *int64        `json:"delay_ms,omitempty" doc:"With queue rules: milliseconds to wait before you proceed"`
	Rules        []CheckRule   `json:"rules" doc:"All matching rules"`
	Skipped      []CheckSkip   `json:"skipped,omitempty" doc:"Rules that were not evaluated"`
	Degraded     bool          `json:"degraded" doc:"Redis was unavailable, and some rule was answered by its on_unavailable"`
	Warning      bool          `json:"warning,omitempty" doc:"An enforcing rule has a warning"`
	Overage      bool          `json:"overage,omitempty" doc:"An enforcing rule is beyond its limit, and allows it"`
	Error        *CheckFailure `json:"error,omitempty" doc:"Only on a denial"`
	Replayed     bool          `json:"replayed,omitempty" doc:"The answer to an earlier request with the same Idempotency-Key; nothing was counted"`
}

// CheckRule is the result of one matching rule.
type CheckRule struct {
	Rule         string `json:"rule"`
	Algorithm    string `json:"algorithm"`
	Mode         string `json:"mode" enum:"enforce,shadow,off"`
	Allowed      bool   `json:"allowed"`
	Source       string `json:"source" doc:"Where the limit comes from: rule, plan:SLUG or override"`
	Unlimited    bool   `json:"unlimited,omitempty" doc:"The rule has no limit here; the numbers are null"`
	Limit        *int64 `json:"limit"`
	Burst        *int64 `json:"burst,omitempty" doc:"Capacity of a bucket" nullable:"true"`
	WindowMS     *int64 `json:"window_ms"`
	Remaining    *int64 `json:"remaining"`
	RetryAfterMS *int64 `json:"retry_after_ms"`
	ResetAfterMS *int64 `json:"reset_after_ms"`
	DelayMS      *int64 `json:"delay_ms,omitempty" nullable:"true"`
	Penalized    bool   `json:"penalized,omitempty" doc:"Denied by the rule's penalty"`
	Missing      string `json:"missing_attribute,omitempty" doc:"Denied because the check lacks this attribute, and the rule's on_missing_attribute is deny"`
	Degraded     bool   `json:"degraded,omitempty" doc:"Answered by the rule's on_unavailable"`
	Warning      bool   `json:"warning,omitempty" doc:"More than warn_at of the limit is used"`
	Overage      bool   `json:"overage,omitempty" doc:"More than the limit is used, which the rule allows"`
	OverageUnits int64  `json:"overage_units,omitempty" doc:"With overage: the units beyond the limit that count now"`
	// Credits are there only if the subject has, or had, some for the rule.
	CreditsSpent     *int64 `json:"credits_spent,omitempty" doc:"With credits of the subject for the rule: units that this check took from them"`
	CreditsRemaining *int64 `json:"credits_remaining,omitempty" doc:"With credits: units that are left; null while Redis is unavailable" nullable:"true"`
}

// CheckSkip is a rule that was not evaluated.
type CheckSkip struct {
	Rule      string `json:"rule"`
	Reason    string `json:"reason" enum:"resource_mismatch,mode_off,missing_attribute,subject_blocked"`
	Attribute string `json:"attribute,omitempty" doc:"The missing attribute"`
}

// CheckFailure is the reason of a denial.
type CheckFailure struct {
	Code       string `json:"code" enum:"RATE_LIMIT_EXCEEDED,COST_EXCEEDS_LIMIT,SUBJECT_BLOCKED,ATTRIBUTE_MISSING,COUNTERS_UNAVAILABLE,SUBJECT_MISSING,SUBJECT_INVALID,RESOURCE_INVALID,ATTRIBUTE_INVALID,REQUEST_INVALID,RESOURCE_NOT_ALLOWED" doc:"The last six only at /v1/authorize"`
	Message    string `json:"message" doc:"For people"`
	RetryAfter *int64 `json:"retry_after" doc:"Whole seconds, rounded up; null if no wait helps"`
}

// CheckResults is the answer to a batch.
type CheckResults struct {
	Results  []CheckAnswer `json:"results" doc:"In the order of the checks"`
	Replayed bool          `json:"replayed,omitempty" doc:"The answer to an earlier request with the same Idempotency-Key; nothing was counted"`
}

// Health is the answer of /healthz and /readyz.
type Health struct {
	Status   string   `json:"status" enum:"ok,ready"`
	Degraded []string `json:"degraded,omitempty" doc:"Unavailable parts, while checks are still answered"`
	// Causes and Warnings are of /readyz alone.
	Causes   map[string]string `json:"causes,omitempty" doc:"The class of the failure of a degraded part, such as wrong_credentials"`
	Warnings []string          `json:"warnings,omitempty" doc:"What makes decisions wrong one day: redis_eviction, if Redis may evict counters; redis_nearly_full, if new subjects of the largest tenants share counters"`
}

// describeChecks adds the operations that are not served by huma to its document.
func describeChecks(api huma.API) {
	for _, path := range []string{"/v1/check", "/check"} {
		op := checkOperation[CheckRequest, CheckAnswer](api, path, "Check whether a subject may do something now", "The check is allowed")
		op.OperationID = map[string]string{"/v1/check": "check", "/check": "check-short"}[path]
		op.Parameters = []*huma.Param{
			headerParam("Weir-Denied-Status", "200: answer a denial with the status 200 instead of 429"), checkKeyParam(),
		}
		describeDecisionHeader(op, "allow or deny")
		describeLimitHeaders(op.Responses["200"])
		describeLimitHeaders(op.Responses["429"])
		denied := op.Responses["429"]
		denied.Description = "The check is denied; or, as a problem document, the tenant exceeded its own quota (TENANT_QUOTA_EXCEEDED) or, with an Idempotency-Key, has as many bytes of records as it may (TENANT_RECORDS_EXCEEDED)"
		denied.Content[jsonType] = &huma.MediaType{Schema: schemaOf[CheckAnswer](api)}
		api.OpenAPI().AddOperation(op)
	}
	batch := checkOperation[CheckBatch, CheckResults](api, "/v1/check/batch", "Run up to 100 checks", "Decisions, including denials")
	batch.OperationID = "check-batch"
	batch.Parameters = []*huma.Param{checkKeyParam()}
	describeDecisionHeader(batch, "allow if every check of the batch is allowed, deny if at least one is denied")
	describeWarningHeaders(batch.Responses["200"])
	api.OpenAPI().AddOperation(batch)

	describeAuthorize(api)
	describeLeases(api)

	for path, summary := range map[string]string{healthPath: "Liveness", readyPath: "Readiness"} {
		op := &huma.Operation{
			Method: http.MethodGet, Path: path, OperationID: path[1:], Summary: summary, Tags: []string{"health"},
			Responses: map[string]*huma.Response{"200": jsonResponse[Health](api, "It does")},
		}
		if path == readyPath {
			op.Responses["503"] = problemResponse(api, http.StatusServiceUnavailable)
		}
		api.OpenAPI().AddOperation(op)
	}
}

func checkOperation[I, O any](api huma.API, path, summary, allowed string) *huma.Operation {
	op := &huma.Operation{
		Method: http.MethodPost, Path: path, Summary: summary, Tags: []string{"check"},
		Security: []map[string][]string{{"key": {}}},
		RequestBody: &huma.RequestBody{
			Required: true,
			Content:  map[string]*huma.MediaType{jsonType: {Schema: schemaOf[I](api)}},
		},
		Responses: map[string]*huma.Response{"200": jsonResponse[O](api, allowed)},
	}
	for _, status := range []int{400, 401, 403, 408, 409, 413, 415, 422, 429, 500, 503} {
		op.Responses[itoa(int64(status))] = problemResponse(api, status)
	}
	return op
}

func checkKeyParam() *huma.Param {
	return headerParam(idempotencyHeader,
		"1 to 64 visible ASCII characters. A second request with the same key within a minute gets the first one's answer, and counts nothing")
}

func jsonResponse[T any](api huma.API, description string) *huma.Response {
	return &huma.Response{
		Description: description,
		Content:     map[string]*huma.MediaType{jsonType: {Schema: schemaOf[T](api)}},
	}
}

func problemResponse(api huma.API, status int) *huma.Response {
	return &huma.Response{
		Description: http.StatusText(status),
		Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: schemaOf[Problem](api)}},
	}
}
