package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// LeaseRequest is the body of POST /v1/leases.
type LeaseRequest struct {
	Subject    string            `json:"subject" minLength:"1" maxLength:"256" doc:"What to limit: 1 to 256 bytes of UTF-8 without control characters"`
	Resource   string            `json:"resource,omitempty" minLength:"1" maxLength:"256" default:"default" doc:"What the subject wants to use: 1 to 256 bytes"`
	Plan       string            `json:"plan,omitempty" doc:"Slug of a plan; default: the subject's plan, else the tenant's default plan"`
	Attributes map[string]string `json:"attributes,omitempty" maxProperties:"16" doc:"Further values that rules can count by"`
	Units      int64             `json:"units" minimum:"1" maximum:"1000000000000000" doc:"The most units to lease"`
}

// LeaseAnswer is a granted lease.
type LeaseAnswer struct {
	Lease       string      `json:"lease" doc:"Id of the lease, for its return"`
	Units       int64       `json:"units" minimum:"1" doc:"Units that the client may grant"`
	ExpiresInMS int64       `json:"expires_in_ms" minimum:"1" doc:"How long, in milliseconds from before the request was sent, by a clock that never jumps"`
	Decision    CheckAnswer `json:"decision" doc:"The check of all these units, which are charged"`
}

// LeaseReturn is the body of POST /v1/leases/{lease}/return.
type LeaseReturn struct {
	Units       int64 `json:"units" minimum:"0" maximum:"1000000000000000" doc:"Units that the client did not grant"`
	Allowed     int64 `json:"allowed,omitempty" minimum:"0" maximum:"1000000000000000" doc:"Checks that the client allowed from the lease; at most the used units. Without it, used units count as one check"`
	Denied      int64 `json:"denied,omitempty" minimum:"0" maximum:"1000000000000000" doc:"Checks of the same kind that the client denied from memory since the last return"`
	DeniedUnits int64 `json:"denied_units,omitempty" minimum:"0" maximum:"1000000000000000" doc:"Sum of the costs of the denied checks"`
}

// describeLeases adds the leases of clients to the OpenAPI document.
func describeLeases(api huma.API) {
	grant := checkOperation[LeaseRequest, LeaseAnswer](api, leasesPath, "Lease units for checks in the client's memory", "The units are charged and may be granted")
	grant.OperationID = "grant-lease"
	grant.Description = "For rules with the consistency leased. 409: send each check; errors names the rules that cannot be leased."
	describeDecisionHeader(grant, "allow or deny")
	describeLimitHeaders(grant.Responses["200"])
	describeLimitHeaders(grant.Responses["429"])
	denied := grant.Responses["429"]
	denied.Description = "Nothing is left, and a check of cost 1 is denied; or, as a problem document, the tenant exceeded its own quota (TENANT_QUOTA_EXCEEDED) or has as many bytes of records as it may (TENANT_RECORDS_EXCEEDED)"
	denied.Content[jsonType] = &huma.MediaType{Schema: schemaOf[CheckAnswer](api)}
	api.OpenAPI().AddOperation(grant)

	back := checkOperation[LeaseReturn, LeaseAnswer](api, returnPath, "Return a lease", "")
	back.OperationID = "return-lease"
	back.Description = "Unused units go back to their counters, and the checks count in usage and metering, once. A repeat changes nothing."
	back.Parameters = []*huma.Param{{
		Name: "lease", In: "path", Required: true, Description: "Id of the lease", Schema: &huma.Schema{Type: huma.TypeString},
	}}
	delete(back.Responses, "200")
	delete(back.Responses, "409")
	back.Responses["204"] = &huma.Response{Description: "The lease is over"}
	back.Responses["404"] = problemResponse(api, http.StatusNotFound)
	api.OpenAPI().AddOperation(back)
}
