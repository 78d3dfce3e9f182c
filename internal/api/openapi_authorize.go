package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// describeAuthorize adds /v1/authorize to the OpenAPI document, as a GET, because the document
// cannot express that all methods are equal.
func describeAuthorize(api huma.API) {
	describeGateway(api, &huma.Operation{
		Path: authorizePath, OperationID: "authorize", Summary: "Decide on a gateway's request",
		Description: "For nginx's auth_request and the like. Every other method is the same, and the body is ignored. The check comes in headers. " +
			"204 allows the request, any other status does not.",
		Parameters: []*huma.Param{
			headerParam("Weir-Subject", "What to limit. If missing or invalid, the request is denied"),
			headerParam("Weir-Resource", "What the subject wants to use; default: default"),
			headerParam("Weir-Cost", "Units to take; default: 1"),
			headerParam("Weir-Plan", "Slug of a plan; default: the subject's plan, else the tenant's default plan"),
			headerParam("Weir-Attribute-NAME", "A further value that rules can count by, named in lower case"),
			headerParam("Weir-Encoding", "percent: the values above are percent-encoded UTF-8; default: they are taken literally"),
			headerParam("Weir-Denied-Status", "403: answer a denial with the status 403 instead of 429"),
		},
	})
	describeGateway(api, &huma.Operation{
		Path: authorizePath + "/{route}", OperationID: "authorize-route", Summary: "Decide on a gateway's request by a route",
		Description: "The route says what the subject, the resource, the cost and the attributes are. Any path may follow: it then is the URI of the customer's request. " +
			"Every other method is the same, and the body is ignored.",
		Parameters: []*huma.Param{
			{Name: "route", In: "path", Required: true, Description: "Slug of the route", Schema: &huma.Schema{Type: huma.TypeString}},
			headerParam("X-Forwarded-Method", "Method of the customer's request; default: the method of this request"),
			headerParam("X-Forwarded-Uri", "Path and query of the customer's request"),
			headerParam("X-Original-Method", "As X-Forwarded-Method, for X-Original-URI and X-Original-URL"),
			headerParam("X-Original-URI", "As X-Forwarded-Uri"),
			headerParam("X-Original-URL", "As X-Forwarded-Uri, or a complete URL"),
			headerParam("X-Forwarded-For", "Addresses; the last one that is not a trusted proxy is the customer's"),
		},
	})
}

// describeGateway adds an operation with the common parts.
func describeGateway(api huma.API, op *huma.Operation) {
	op.Method, op.Tags = http.MethodGet, []string{"check"}
	op.Security = []map[string][]string{{"gateway": {}}}
	op.Responses = map[string]*huma.Response{"204": {Description: "The request may pass"}}
	for _, status := range []int{400, 401, 403, 404, 422, 429, 500, 503} {
		op.Responses[itoa(int64(status))] = problemResponse(api, status)
	}
	op.Responses["429"].Content = map[string]*huma.MediaType{}
	op.Responses["429"].Description = "The request is denied"
	op.Responses["403"].Description = "The request is denied, with a denied status of 403; or, as a problem document, the key lacks the scope check"
	for _, status := range []string{"403", "429"} {
		op.Responses[status].Content[jsonType] = &huma.MediaType{Schema: schemaOf[CheckAnswer](api)}
	}
	describeDecisionHeader(op, "allow or deny")
	for _, status := range []string{"204", "403", "429"} {
		describeLimitHeaders(op.Responses[status])
	}
	api.OpenAPI().AddOperation(op)
}
