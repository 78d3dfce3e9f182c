package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// describeAuthorize adds /v1/authorize to the OpenAPI document, as a GET: the document cannot say that
// every method is the same.
func describeAuthorize(api huma.API) {
	op := &huma.Operation{
		Method: http.MethodGet, Path: authorizePath, OperationID: "authorize",
		Summary: "Decide on a gateway's request", Tags: []string{"check"},
		Description: "For nginx's auth_request and the like. Every other method is the same, and the body is ignored. The check comes in headers. " +
			"204 allows the request, any other status does not.",
		Security: []map[string][]string{{"gateway": {}}},
		Parameters: []*huma.Param{
			headerParam("Weir-Subject", "What to limit. If missing or invalid, the request is denied"),
			headerParam("Weir-Resource", "What the subject wants to use; default: default"),
			headerParam("Weir-Cost", "Units to take; default: 1"),
			headerParam("Weir-Plan", "Slug of a plan; default: the subject's plan, else the tenant's default plan"),
			headerParam("Weir-Attribute-NAME", "A further value that rules can count by, named in lower case"),
			headerParam("Weir-Encoding", "percent: the values above are percent-encoded UTF-8; default: they are taken literally"),
			headerParam("Weir-Denied-Status", "403: answer a denial with the status 403 instead of 429"),
		},
		Responses: map[string]*huma.Response{"204": {Description: "The request may pass"}},
	}
	for _, status := range []int{400, 401, 403, 404, 422, 429, 500, 503} {
		op.Responses[itoa(int64(status))] = problemResponse(api, status)
	}
	op.Responses["429"].Content = map[string]*huma.MediaType{}
	op.Responses["429"].Description = "The request is denied"
	op.Responses["403"].Description = "The request is denied, with Weir-Denied-Status: 403; or, as a problem document, the key lacks the scope check"
	for _, status := range []string{"403", "429"} {
		op.Responses[status].Content[jsonType] = &huma.MediaType{Schema: schemaOf[CheckAnswer](api)}
	}
	describeDecisionHeader(op, "allow or deny")
	for _, status := range []string{"204", "403", "429"} {
		describeLimitHeaders(op.Responses[status])
	}
	api.OpenAPI().AddOperation(op)
}
