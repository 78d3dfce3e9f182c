package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"weir/internal/limit"
)

// huma stores these settings in package variables, so they are set once for the process: errors are
// problem documents, names of fields are case-sensitive, arrays are not null, and messages complete
// the sentence "FIELD ...", like those of package limit.
func init() {
	huma.ValidateStrictCasing = true
	huma.DefaultArrayNullable = false
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		return validationProblem(status, message, errs, nil)
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, message string, errs ...error) huma.StatusError {
		return validationProblem(status, message, errs, ctx.Operation())
	}
	// A message of the validator is a template. The template of the fix follows fixMark.
	mustBe := func(what string) string { return "must be " + what + fixMark + "Make it " + what + "." }
	withFix := func(p *limit.Problem) string { return p.Message + fixMark + p.Fix }
	validation.MsgUnexpectedProperty = validatorUnknown
	validation.MsgExpectedRequiredProperty = validatorRequired + "%s"
	validation.MsgExpectedRFC3339DateTime = withFix(notRFC3339)
	validation.MsgExpectedBoolean = withFix(notBoolean)
	validation.MsgExpectedInteger = withFix(notInteger)
	validation.MsgExpectedNumber = mustBe("a number")
	validation.MsgExpectedString = "must be a string" + fixMark + "Put it in quotes."
	validation.MsgExpectedArray = "must be an array" + fixMark + "Write it in brackets: [...]."
	validation.MsgExpectedObject = withFix(notObject)
	validation.MsgExpectedOneOf = "must be one of %[1]s" + fixMark + "Use one of %[1]s."
	validation.MsgExpectedMinimumNumber = mustBe("at least %.16[1]g") // whole numbers to 10^15 without exponent
	validation.MsgExpectedMaximumNumber = mustBe("at most %.16[1]g")
	validation.MsgExpectedMinLength = mustBe("%[1]d or more characters long")
	validation.MsgExpectedMaxLength = mustBe("at most %[1]d characters long")
	validation.MsgExpectedMinItems = "must have %[1]d or more items" + fixMark + "Send at least %[1]d."
	validation.MsgExpectedMaxItems = "must have %[1]d or fewer items" + fixMark + "Send at most %[1]d."
	validation.MsgExpectedArrayItemsUnique = "must not have duplicate items" + fixMark + limit.Duplicate.Fix
}

// Parts of the messages of the validator.
const (
	fixMark           = "\x1f"
	validatorUnknown  = fixMark + "unknown"
	validatorRequired = fixMark + "required " // and the name
)

// validatorProblem converts a message of the validator.
func validatorProblem(message string) *limit.Problem {
	text, fix, ours := strings.Cut(message, fixMark)
	if !ours { // a validation that none of the schemas uses
		fix = "Correct the value: /openapi.json describes it."
	}
	return &limit.Problem{Message: text, Fix: fix}
}

// readOnlyFields are members of answers that only the service sets.
var readOnlyFields = map[string]bool{
	"id": true, "created_at": true, "updated_at": true, "version": true, "created_by": true,
	"last_used_at": true, "last4": true, "revoked_at": true, "secret": true, "rotated_to": true,
	"warnings": true,
}

// validationProblem converts the errors of huma's validation to a problem document.
func validationProblem(status int, message string, errs []error, op *huma.Operation) *Problem {
	switch status {
	case http.StatusUnprocessableEntity:
	case 0: // huma calls it to find the type of errors
		return &Problem{}
	default:
		p := newProblem(http.StatusInternalServerError, codeInternal, "")
		p.cause = &validatorError{status: status, message: message}
		return p
	}
	return invalid(shownFields(errs, op)...)
}

// shownFields is validationFields where only the first maxProblemFields are needed, and the number
// of all: the others are empty. A body of 4 KB can have thousands of errors, and to convert them
// took longer than all the rest.
func shownFields(errs []error, op *huma.Operation) []ProblemField {
	if len(errs) <= maxProblemFields {
		return validationFields(errs, op)
	}
	errs = slices.Clone(errs)
	slices.SortStableFunc(errs, func(a, b error) int { return strings.Compare(locationOf(a), locationOf(b)) })
	fields := make([]ProblemField, len(errs))
	copy(fields, validationFields(errs[:maxProblemFields], op))
	return fields
}

// locationOf returns where a validation error is.
func locationOf(err error) string {
	if d, ok := err.(*huma.ErrorDetail); ok {
		return d.Location
	}
	return ""
}

// validationFields returns the fields of huma's validation errors. op is the operation, if known.
func validationFields(errs []error, op *huma.Operation) []ProblemField {
	fields := make([]ProblemField, 0, len(errs))
	for _, err := range errs {
		if detailer, ok := err.(huma.ErrorDetailer); ok {
			fields = append(fields, validationField(detailer.ErrorDetail(), op))
		}
	}
	// The validator reports unknown fields in the random order of a map.
	slices.SortStableFunc(fields, func(a, b ProblemField) int { return strings.Compare(a.Pointer, b.Pointer) })
	return fields
}

// validatorError is a refusal by huma that the guard should have found before.
type validatorError struct {
	status  int
	message string
}

func (e *validatorError) Error() string {
	return fmt.Sprintf("validator answered %d: %s", e.status, e.message)
}

func validationField(d *huma.ErrorDetail, op *huma.Operation) ProblemField {
	where, path, _ := strings.Cut(d.Location, ".")
	if strings.HasPrefix(d.Location, "body[") {
		where, path = "body", strings.TrimPrefix(d.Location, "body")
	}
	if where != "body" {
		name, _, _ := strings.Cut(path, "[") // a list is one parameter
		return wrongField(where+":"+name, parameterProblem(d, op, name))
	}
	pointer := jsonPointer(path)
	if name, ok := strings.CutPrefix(d.Message, validatorRequired); ok {
		return wrongField(pointer+"/"+name, isRequired)
	}
	if d.Message != validatorUnknown {
		return wrongField(pointer, validatorProblem(d.Message))
	}
	var shown map[string]bool
	if op != nil {
		shown, _ = op.Metadata[metaShown].(map[string]bool)
	}
	switch name := path[strings.LastIndexByte(path, '.')+1:]; {
	case readOnlyFields[name]:
		return wrongField(pointer, isSetByUs)
	case shown[path]:
		return wrongField(pointer, isReadOnly)
	}
	f := wrongField(pointer, unknownField)
	f.unknown = true
	return f
}

// noteShown stores for each operation with a body the fields of answers about the same object. If
// the body contains such a field that it does not accept, the field is read-only, and the error
// says so.
func noteShown(doc *huma.OpenAPI) {
	for _, item := range doc.Paths {
		for _, op := range operationsOf(item) {
			from := item.Get
			if from == nil {
				from = op
			} else if op.Method == http.MethodPost {
				from = op // the GET is of a list
			}
			if op.RequestBody == nil || op.Metadata == nil || op.Metadata[metaReadOnly] == true {
				continue
			}
			shown := map[string]bool{}
			for _, status := range []string{"200", "201"} {
				if answer := from.Responses[status]; answer != nil && answer.Content[jsonType] != nil {
					for name := range resolved(doc, answer.Content[jsonType].Schema).Properties {
						shown[name] = true
					}
				}
			}
			op.Metadata[metaShown] = shown
		}
	}
}

func resolved(doc *huma.OpenAPI, s *huma.Schema) *huma.Schema {
	if s.Ref != "" {
		return doc.Components.Schemas.SchemaFromRef(s.Ref)
	}
	return s
}

// parameterProblem returns what is wrong with a parameter. huma does not report why it cannot parse
// a value, so the message comes from the type of the parameter.
func parameterProblem(d *huma.ErrorDetail, op *huma.Operation, name string) *limit.Problem {
	if strings.Contains(d.Message, fixMark) || op == nil {
		return validatorProblem(d.Message)
	}
	if d.Value == "" {
		return isRequired
	}
	for _, p := range op.Parameters {
		if p.Name != name || p.Schema == nil {
			continue
		}
		switch {
		case p.Schema.Type == huma.TypeInteger:
			return notInteger
		case p.Schema.Type == huma.TypeBoolean:
			return notBoolean
		case p.Schema.Format == "date-time":
			return notRFC3339
		}
	}
	return validatorProblem(d.Message)
}

// newDocument returns the huma API over an adapter, including the OpenAPI 3.1 document of its
// operations.
func newDocument(adapter huma.Adapter, logger *slog.Logger) huma.API {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	config := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:   "Weir",
				Version: "1",
				Description: "Rate limits for many tenants: check before you do something that costs, and edit the rules. " +
					"Errors are problem documents (RFC 9457) whose code is stable. " +
					"An unknown path answers 404, and an unsupported method 405 with the header Allow. " +
					"A request that is not valid HTTP (a malformed request line, path or header) is answered 400, 417, 501 or 505, and one with headers of more than 16 KiB 431; " +
					"the connection is closed.",
			},
			Servers: []*huma.Server{{URL: "/"}},
			Components: &huma.Components{
				Schemas: registry,
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"key":     {Type: "http", Scheme: "bearer", Description: "An API key. Its scopes (check, read, write, manage) say what it may do."},
					"gateway": {Type: "apiKey", In: "header", Name: keyHeader, Description: "An API key with the scope check, as a gateway sends it."},
				},
			},
			Tags: documentTags,
		},
		Formats:       map[string]huma.Format{"application/json": jsonFormat, "json": jsonFormat},
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{completeProblem(registry, logger)},
	}
	return huma.NewAPI(config, adapter)
}

var documentTags = []*huma.Tag{
	{Name: "check", Description: "Decisions"},
	{Name: "tenant", Description: "The tenant that the key belongs to"},
	{Name: "keys", Description: "API keys"},
	{Name: "config", Description: "The configuration as one document: export, preview, apply"},
	{Name: "rules", Description: "What is limited and how"},
	{Name: "routes", Description: "How the requests of a gateway become checks"},
	{Name: "plans", Description: "Billing tiers and their limits"},
	{Name: "subjects", Description: "Plans, states and overrides of subjects"},
	{Name: "security", Description: "Security events, and settings of the sessions of members"},
	{Name: "portal", Description: "The page on which a customer sees their own limits, and their requests for higher ones"},
	{Name: "notifications", Description: "Signed webhooks about the tenant, to endpoints that it configures"},
	{Name: "billing", Description: "Billing systems that move subjects between plans"},
	{Name: "device-logins", Description: "API keys for programs without a browser, which a member approves on the dashboard"},
	{Name: "webhooks", Description: "Where billing systems send their events"},
	{Name: "members", Description: "People who can sign in to the tenant's dashboard, and their roles"},
	{Name: "audit", Description: "Who changed what"},
	{Name: "simulate", Description: "What rules would decide, before they are live"},
	{Name: "decisions", Description: "Decisions of the last minutes, and a stream of new ones"},
	{Name: "usage", Description: "Decisions over time"},
	{Name: "health", Description: "For load balancers"},
	{Name: "tenants", Description: "All tenants; only for the operator"},
}

// tagOf returns the noun of a path: "rules" for /v1/rules/{rule}.
func tagOf(path string) string {
	tag, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	return tag
}

func hasParameter(path string) bool { return strings.Contains(path, "{") }

// completeProblem adds the parts of a problem document that depend on the request.
func completeProblem(registry huma.Registry, logger *slog.Logger) huma.Transformer {
	return func(ctx huma.Context, _ string, v any) (any, error) {
		p, ok := v.(*Problem)
		if !ok {
			return v, nil
		}
		ctx.SetHeader("Cache-Control", "no-store")
		u := ctx.URL()
		answer := *p
		answer.Instance = instanceOf(beginningOf(&u))
		if q := requestFrom(ctx.Context()); q != nil {
			answer.RequestID = q.id
			q.restBefore(p)
		}
		answer.Errors = fixUnknown(registry, ctx.Operation(), p.Errors)
		var unexpected *validatorError
		if errors.As(p.cause, &unexpected) { // errors that handlers return are logged there
			logger.ErrorContext(ctx.Context(), "admin request failed", "request_id", answer.RequestID, "code", p.Code, "error", unexpected)
		}
		return &answer, nil
	}
}

// GetHeaders returns the headers that huma adds to the answer.
func (p *Problem) GetHeaders() http.Header {
	h := p.header.Clone()
	if h == nil {
		h = http.Header{}
	}
	if p.retryAfter > 0 {
		h.Set("Retry-After", itoa(int64(p.retryAfter)))
	}
	return h
}

func schemaOf[T any](api huma.API) *huma.Schema { return schemaIn[T](api.OpenAPI().Components.Schemas) }

func schemaIn[T any](registry huma.Registry) *huma.Schema {
	return registry.Schema(reflect.TypeFor[T](), true, "")
}

func headerParam(name, doc string) *huma.Param {
	return &huma.Param{Name: name, In: "header", Description: doc, Schema: &huma.Schema{Type: "string"}}
}

func idempotencyParam() *huma.Param {
	return headerParam(idempotencyHeader,
		"1 to 255 printable ASCII characters. For 24 hours, a retry with the same key gets the answer of the first request")
}

func ifMatchParam() *huma.Param {
	return headerParam("If-Match", "Write only if the object has this entity tag, otherwise 412; *: only if it exists")
}

func etagHeader() map[string]*huma.Param {
	return map[string]*huma.Param{"ETag": {Description: "Version of the object", Schema: &huma.Schema{Type: "string"}}}
}

// allowMergePatch documents both media types of a merge patch.
func allowMergePatch(body *huma.RequestBody) {
	body.Content[mergePatchType] = body.Content[jsonType]
}
