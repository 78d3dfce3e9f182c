package api

import (
	"bytes"
	"context"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
)

const (
	maxAdminBody   = 1 << 20 // bytes
	jsonType       = "application/json"
	mergePatchType = "application/merge-patch+json"
)

// adapter registers huma's operations with the router, each behind the guard. The guard gets the
// operation, which defines the scope, the parameters and the body of the route.
type adapter struct {
	router       chi.Router
	admin        *admin
	authenticate func(http.Handler) http.Handler
}

// Handle is called by huma for each operation.
func (ad *adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ad.admin.answers.answerWhole(w, r, func(w http.ResponseWriter) { handler(humachi.NewContext(op, r, w)) })
	})
	guarded := ad.authenticate(admitTenant(ad.admin.guard(op, h)))
	ad.router.Method(op.Method, op.Path, guarded)
	if op.Method == http.MethodGet {
		ad.router.Method(http.MethodHead, op.Path, guarded)
	}
}

// ServeHTTP implements http.Handler, as huma requires.
func (ad *adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) { ad.router.ServeHTTP(w, r) }

// conditions are the preconditions of a request.
type conditions struct {
	match     tenants.Match
	noneMatch []string // values of If-None-Match, read only by GET
	accept    string   // the header, read only by GET
	base      string   // scheme and host that the caller used
}

type conditionsKey struct{}

func conditionsFrom(ctx context.Context) conditions {
	c, _ := ctx.Value(conditionsKey{}).(conditions)
	return c
}

// guard refuses invalid requests before the handler of op runs, in the order of importance: first
// permissions, then whether the request can be parsed.
func (a *admin) guard(op *huma.Operation, next http.Handler) http.Handler {
	scope := scopeOf(op)
	next = a.answers.inTurnsOf(op, next)
	query := queryParameters(op)
	kind := tenants.OrdinaryWrite
	switch {
	case op.Metadata[metaReset] == true:
		kind = tenants.ResetWrite
	case op.Metadata[metaEnds] == true:
		kind = tenants.EndWrite
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", cacheControl(r.Method))
		cond, err := a.admit(op, scope, query, r)
		if err != nil {
			writeProblem(w, r, err)
			return
		}
		if scope != tenants.ScopeRead {
			if err := a.store.AdmitWrite(r.Context(), actorFrom(r.Context()), kind); err != nil {
				writeProblem(w, r, a.problem(r.Context(), err))
				return
			}
		}
		if limited, ok := op.Metadata[metaSlots].(*slots); ok {
			release, err := limited.take(actorFrom(r.Context()), r.Header.Get(idempotencyHeader))
			if err != nil {
				writeProblem(w, r, err)
				return
			}
			if op.Metadata[metaReader] != nil { // its answer is short, and may never be read
				release = sync.OnceFunc(release) // the next transfer of the tenant may have the slot meanwhile
				requestFrom(r.Context()).untilAnswer(release)
			}
			defer release()
		}
		defer requestFrom(r.Context()).endTurn()
		var body []byte // or a digest, if the body is too large for memory
		if read, ok := op.Metadata[metaReader].(bodyReader); ok {
			r, body, err = readStream(r, op, read)
		} else if op.RequestBody != nil {
			body, err = a.readBounded(r, op)
			r.Header.Set("Content-Type", jsonType) // normalized, because it has been checked
		}
		if err != nil {
			writeProblem(w, r, err)
			return
		}
		cond.base = baseOf(r)
		ctx := tenants.WithOrigin(r.Context(), originOf(r))
		r = r.WithContext(context.WithValue(ctx, conditionsKey{}, cond))
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := next
		// A request that changes nothing can be repeated in any case.
		if r.Method == http.MethodPost && scope != tenants.ScopeRead && len(r.Header.Values(idempotencyHeader)) > 0 {
			requestFrom(r.Context()).endTurn() // the store may let it wait for other changes of the tenant
			answer = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.idempotent(w, r, op, body, next) })
		}
		if scope != tenants.ScopeRead {
			answer = a.committed(answer)
		}
		answer.ServeHTTP(w, r)
	})
}

// baseOf returns the scheme and the host that the caller used. They are only shown to the caller.
func baseOf(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// originOf returns the origin of a request for the audit trail: the address of the connection or,
// behind a trusted proxy, the address that the proxy reports (package origin). Other headers cannot
// be trusted.
func originOf(r *http.Request) tenants.Origin {
	address := r.RemoteAddr
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return tenants.Origin{Address: address, UserAgent: r.UserAgent(), RequestID: requestID(r.Context())}
}

// admit checks everything except the body.
func (a *admin) admit(op *huma.Operation, scope tenants.Scope, query map[string]parameter, r *http.Request) (conditions, *Problem) {
	var cond conditions
	actor := actorFrom(r.Context())
	if p := lackingScope(actor, scope); p != nil {
		return cond, p
	}
	if op.Metadata[metaOperator] == true && !actor.Operator() {
		return cond, newProblem(http.StatusForbidden, codeOperatorOnly, "This operation requires an operator key.")
	}
	if p := checkPath(r); p != nil {
		return cond, p
	}
	if p := checkQuery(r.URL.RawQuery, query); p != nil {
		return cond, p
	}
	return readConditions(r)
}

// cacheControl forbids storing answers, but a GET can be revalidated with If-None-Match.
func cacheControl(method string) string {
	if method == http.MethodGet || method == http.MethodHead {
		return "private, no-cache"
	}
	return "no-store"
}

// checkPath refuses path parameters that cannot exist. A malformed slug or id is not found. A
// subject can be any string that a check can contain.
func checkPath(r *http.Request) *Problem {
	params := chi.RouteContext(r.Context()).URLParams
	for i, name := range params.Keys {
		value := params.Values[i]
		if r.URL.RawPath != "" { // chi matched the escaped path
			unescaped, err := url.PathUnescape(value)
			if err != nil {
				return newProblem(http.StatusNotFound, codeNotFound, "")
			}
			value = unescaped
		}
		if value == "" || name != "subject" && !validText(value) {
			return newProblem(http.StatusNotFound, codeNotFound, "")
		}
		if wrong := limit.ValidName(value); name == "subject" && wrong != nil {
			return invalid(wrongField("path:subject", wrong))
		}
	}
	return nil
}

// validText reports whether Postgres can store s.
func validText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// parameter describes a query parameter.
type parameter struct {
	repeats bool // it may appear more than once
	boolean bool
	values  int // how many values a list of them can have; 0: it is no list
}

// maxParameters is the number of parameters of a query, far more than an operation takes.
const maxParameters = 200

// checkQuery refuses unknown parameters, and duplicates of those that may appear only once, because
// one of the two values would be ignored.
func checkQuery(raw string, known map[string]parameter) *Problem {
	if strings.Count(raw, "&") >= maxParameters {
		return newProblem(http.StatusBadRequest, codeMalformedQuery, "The query string has more than "+itoa(maxParameters)+" parameters.")
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return newProblem(http.StatusBadRequest, codeMalformedQuery, "The query string is not well-formed.")
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	var unknown, wrong []ProblemField // beyond maxProblemFields, unknown ones are empty
	for _, name := range names {
		pointer := "query:" + name
		takes, isKnown := known[name]
		switch v := values[name]; {
		case !isKnown && len(unknown) >= maxProblemFields:
			unknown = append(unknown, ProblemField{})
		case !isKnown:
			unknown = append(unknown, ProblemField{
				Pointer: strings.ToValidUTF8(pointer, "�"), Message: unknownField.Message, Fix: fixParameter(name, known, len(unknown)),
			})
		case len(v) > 1 && !takes.repeats:
			wrong = append(wrong, wrongField(pointer, isRepeated))
		case !validText(strings.Join(v, "")):
			wrong = append(wrong, wrongField(pointer, limit.MustBe("UTF-8 without NUL")))
		case slices.Contains(v, ""):
			wrong = append(wrong, wrongField(pointer, isEmpty))
		case takes.values > 0 && strings.Count(v[0], ",") >= takes.values: // huma has a message for each item
			wrong = append(wrong, wrongField(pointer, limit.Wrong("Send each item once.", "must have at most %d items", takes.values)))
		case takes.boolean && v[0] != "true" && v[0] != "false": // stricter than strconv
			wrong = append(wrong, wrongField(pointer, notBoolean))
		}
	}
	if len(unknown) > 0 {
		p := newProblem(http.StatusBadRequest, codeUnknownParameter, fieldsDetail(unknown))
		p.Errors = unknown[:min(len(unknown), maxProblemFields)]
		return p
	}
	if len(wrong) > 0 {
		return invalid(wrong...)
	}
	return nil
}

// queryParameters returns the query parameters of op by name.
func queryParameters(op *huma.Operation) map[string]parameter {
	known := map[string]parameter{}
	for _, p := range op.Parameters {
		if p.In != "query" {
			continue
		}
		takes := parameter{repeats: p.Explode != nil && *p.Explode, boolean: p.Schema != nil && p.Schema.Type == huma.TypeBoolean}
		if !takes.repeats && p.Schema != nil && p.Schema.Items != nil {
			takes.values = len(p.Schema.Items.Enum)
		}
		known[p.Name] = takes
	}
	return known
}

// suggestions is for how many unknown parameters the nearest known one is looked up.
const suggestions = 8

// fixParameter returns the fix for an unknown parameter, behind so many others.
func fixParameter(name string, known map[string]parameter, before int) string {
	if before >= suggestions {
		return "Omit it."
	}
	return fixName(name, slices.Collect(maps.Keys(known)))
}

// readConditions parses If-Match and If-None-Match. If a method does not support one of them, the
// request is refused: ignoring a condition would do what the caller wanted to prevent.
func readConditions(r *http.Request) (conditions, *Problem) {
	ifMatch, ifNoneMatch := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		_, p := noneMatch(ifNoneMatch, "")
		return conditions{noneMatch: ifNoneMatch, accept: r.Header.Get("Accept")}, p
	case http.MethodPost:
		if len(ifMatch) > 0 {
			return conditions{}, invalidHeader("If-Match", limit.Wrong("Omit it.", "is for PUT, PATCH and DELETE"))
		}
	}
	if len(ifNoneMatch) > 0 {
		return conditions{}, invalidHeader("If-None-Match", limit.Wrong("Omit it.", "is for GET"))
	}
	m, p := parseMatch(ifMatch)
	return conditions{match: m}, p
}

// readBounded reads the body of an operation that huma validates.
func (a *admin) readBounded(r *http.Request, op *huma.Operation) ([]byte, *Problem) {
	body, p := readDocument(r, op)
	if p == nil {
		p = boundErrors(a.api.OpenAPI().Components.Schemas, op, body)
	}
	return body, p
}

// readDocument reads the body of an operation and checks its form. YAML is converted to JSON. A
// body that is not small has a turn then, until endTurn.
func readDocument(r *http.Request, op *huma.Operation) ([]byte, *Problem) {
	takes, lim := op.RequestBody, maxAdminBody
	if most, ok := op.Metadata[metaMaxBody].(int); ok {
		lim = most
	}
	if r.ContentLength == 0 && !takes.Required {
		return nil, nil
	}
	mediaType, p := checkBodyType(r.Header, takes.Content)
	if p != nil {
		return nil, p
	}
	q := requestFrom(r.Context())
	if p = q.hold(r, lim); p != nil {
		return nil, p
	}
	body, p := q.capacity.read(q.capacity.of(actorFrom(r.Context()).TenantID()), r, nil, lim)
	if p != nil {
		return nil, p
	}
	if len(body) == 0 && !takes.Required {
		return nil, nil
	}
	if mediaType == yamlType {
		body, p = q.convertYAML(r, body)
	} else {
		p = q.takeTurn(r, len(body))
	}
	if p != nil {
		return nil, p
	}
	return body, checkJSON(body)
}

// checkBodyType requires one of the operation's media types, in UTF-8, uncompressed, and returns
// it.
func checkBodyType(h http.Header, takes map[string]*huma.MediaType) (string, *Problem) {
	names := make([]string, 0, len(takes))
	for name := range takes {
		names = append(names, name)
	}
	slices.Sort(names)
	refuse := func(detail string) *Problem {
		p := newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType, detail)
		if takes[mergePatchType] != nil {
			p.withHeader("Accept-Patch", strings.Join(names, ", "))
		}
		return p
	}
	if len(h.Values("Content-Encoding")) > 0 {
		return "", refuse("The body must not be compressed. Omit Content-Encoding.")
	}
	mediaType, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || takes[mediaType] == nil || len(h.Values("Content-Type")) != 1 {
		return "", refuse("Content-Type must be " + strings.Join(names, " or ") + ".")
	}
	for name, value := range params {
		if name != "charset" || !strings.EqualFold(value, "utf-8") {
			return "", refuse("Content-Type allows only the parameter charset=utf-8.")
		}
	}
	return mediaType, nil
}
