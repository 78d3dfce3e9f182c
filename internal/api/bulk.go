package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"weir/internal/tenants"
)

// Bulk transfer of subjects: a GET that streams all of them, and a POST that takes as many. Both go
// through the guard as all operations do, except for their bodies, which are too large to be held
// as text: bulk_export.go writes one as it is read from Postgres, bulk_import.go reads one line by
// line.

const (
	olderLinesType = "application/x-ndjson" // jsonLinesType by its older name

	maxImports = 2 // at once on an instance; each may take some 200 MiB of memory
	maxExports = 4 // at once on an instance; each holds a connection to Postgres

	bulkRetryAfter = 5 // seconds
)

// BulkSubject is a subject on one line of an import or export in JSON.
type BulkSubject struct {
	Subject     string                                        `json:"subject" doc:"1 to 256 bytes of UTF-8 without control characters"`
	Plan        Optional[string]                              `json:"plan,omitempty" doc:"Slug of a plan; null: the tenant's default plan"`
	PlanVersion Optional[int64]                               `json:"plan_version,omitempty" minimum:"1" maximum:"1000000000" doc:"Version of the plan; null: the present version of the same plan, and the newest of another one"`
	State       Optional[string]                              `json:"state,omitempty" enum:"active,blocked,exempt" doc:"null: active"`
	BillingRef  Optional[string]                              `json:"billing_ref,omitempty" doc:"Name in your billing system; up to 256 bytes"`
	CycleAnchor Optional[time.Time]                           `json:"cycle_anchor,omitempty" doc:"RFC 3339: where the windows of rules with the anchor subject begin; null: by the calendar"`
	Labels      Optional[map[string]string]                   `json:"labels,omitempty" doc:"All of its labels, at most 32; null: none"`
	Overrides   Optional[map[string]Optional[ConfigOverride]] `json:"overrides,omitempty" doc:"By the slug of the rule; omitted overrides are unchanged, null deletes one"`
}

// ImportAnswer counts what an import did, or would do.
type ImportAnswer struct {
	Created   int `json:"created" doc:"Subjects that were not registered"`
	Updated   int `json:"updated" doc:"Subjects that were registered and differed"`
	Unchanged int `json:"unchanged" doc:"Subjects that did not change"`
}

// ImportQuery says how to carry an import out.
type ImportQuery struct {
	Mode   string `query:"mode" enum:"upsert,create" default:"upsert" doc:"create: an already registered subject is an error"`
	DryRun bool   `query:"dry_run" doc:"Answer what would happen, and change nothing"`
}

// SubjectFilterParams say which subjects are meant.
type SubjectFilterParams struct {
	Prefix string `query:"prefix" doc:"Only subjects that begin with this text, ordered by their bytes"`
	Plan   string `query:"plan" doc:"Only subjects with this plan"`
	State  string `query:"state" enum:"active,blocked,exempt" doc:"Only subjects in this state"`
	Label  string `query:"label" doc:"Only subjects with this label: NAME=VALUE, or NAME for any value"`
}

// ExportQuery says which subjects to export, and how.
type ExportQuery struct {
	SubjectFilterParams
	Format string `query:"format" enum:"jsonl,csv" doc:"Overrides the header Accept; default jsonl. CSV has no overrides"`
}

// bulkRoutes adds both operations. Their path is none that a subject could have.
func (a *admin) bulkRoutes() {
	const path = "/v1/bulk/subjects"
	text := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Description: "One BulkSubject per line"}}
	table := &huma.MediaType{Schema: &huma.Schema{
		Type: huma.TypeString, Description: "The columns subject, plan, state, billing_ref, cycle_anchor, labels (a JSON object) and plan_version, with their names in the first line",
	}}
	schemaOf[BulkSubject](a.api) // a component of the document, for readers of the line above

	get := a.operation(http.MethodGet, path, "export-subjects", "Export subjects", nil)
	get.Tags = []string{tagOf("/v1/subjects")}
	get.Description = "All subjects that match the filters, as of one instant, ordered by their bytes. docs/subjects.md explains the formats."
	get.Metadata[metaSlots] = newSlots(maxExports)
	get.Responses["200"] = &huma.Response{
		Description: "OK", Content: map[string]*huma.MediaType{jsonLinesType: text, csvType: table},
	}
	register(a, get, a.exportSubjects)

	post := a.operation(http.MethodPost, path, "import-subjects", "Import subjects", nil)
	post.Tags = get.Tags
	post.Description = "All or nothing. Up to 64 MiB and 200 000 lines. Omitted fields are unchanged. " +
		"Errors point at line:N/FIELD. docs/subjects.md explains the formats."
	post.DefaultStatus = http.StatusOK
	post.Metadata[metaSlots] = newSlots(maxImports)
	post.Metadata[metaReader] = bodyReader(a.readImport)
	post.Parameters = append(post.Parameters, idempotencyParam())
	post.Errors = append(post.Errors, http.StatusUnprocessableEntity)
	post.RequestBody = &huma.RequestBody{
		Required: true, Content: map[string]*huma.MediaType{csvType: table, jsonLinesType: text, olderLinesType: text},
	}
	register(a, post, a.importSubjects)
}

// bodyReader reads a body that is too large to be held as text. What it makes of it goes to the
// handler in the context that it returns; digest tells the body from all others.
type bodyReader func(r *http.Request, mediaType string) (ctx context.Context, digest []byte, p *Problem)

// readStream is readDocument for an operation that reads its body itself.
func readStream(r *http.Request, op *huma.Operation, read bodyReader) (*http.Request, []byte, *Problem) {
	mediaType, p := checkBodyType(r.Header, op.RequestBody.Content)
	if p != nil {
		return r, nil, p
	}
	ctx, digest, p := read(r, mediaType)
	if p != nil {
		return r, nil, p
	}
	return r.WithContext(ctx), digest, nil
}

// slots bound how many transfers run at once: of each tenant one, so that none can keep the others
// waiting alone.
type slots struct {
	mu      sync.Mutex
	most    int
	running map[uuid.UUID]transfer // by tenant
}

// transfer is what tells one that runs from another.
type transfer struct {
	apiKey         uuid.UUID
	idempotencyKey string // "": none
}

func newSlots(most int) *slots { return &slots{most: most, running: map[uuid.UUID]transfer{}} }

// take returns what gives the slot back. A request that repeats the one that runs is told so, as it
// would be by the store if its body were read: it is that one's answer that it waits for, not a
// place.
func (s *slots) take(actor tenants.Actor, idempotencyKey string) (release func(), p *Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tenant, this := actor.TenantID(), transfer{actor.KeyID(), idempotencyKey}
	running, busy := s.running[tenant]
	switch {
	case busy && running == this && idempotencyKey != "":
		return nil, newProblem(http.StatusConflict, codeIdempotencyKeyInUse,
			"The first request with this Idempotency-Key is still running. Try again.").withRetryAfter(bulkRetryAfter)
	case busy:
		return nil, newProblem(http.StatusTooManyRequests, codeBulkBusy,
			"This instance already runs such a transfer of the tenant.").withRetryAfter(bulkRetryAfter)
	case len(s.running) >= s.most:
		return nil, newProblem(http.StatusTooManyRequests, codeBulkBusy,
			"This instance runs its maximum number of transfers.").withRetryAfter(bulkRetryAfter)
	}
	s.running[tenant] = this
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, tenant)
	}, nil
}

// deadlines moves the server's time limits of one request. They are kept where a connection cannot
// have others.
type deadlines struct{ connection *http.ResponseController }

func deadlinesOf(ctx context.Context) deadlines {
	return deadlines{http.NewResponseController(requestFrom(ctx).ResponseWriter)}
}

// read is when reading ends. After the body too: the server watches for the client to hang up, and
// takes the deadline for that.
func (d deadlines) read(after time.Duration) { _ = d.connection.SetReadDeadline(time.Now().Add(after)) }

func (d deadlines) write(after time.Duration) {
	_ = d.connection.SetWriteDeadline(time.Now().Add(after))
}

// linesProblem is the 422 that names bad lines.
func linesProblem(e *tenants.LinesError) *Problem {
	fields := make([]ProblemField, len(e.Lines))
	for i, l := range e.Lines {
		pointer := l.Field
		if !strings.HasPrefix(pointer, "/") { // as the store spells it
			pointer = jsonPointer(pointer)
		}
		fields[i] = ProblemField{Pointer: "line:" + itoa(int64(l.Line)) + pointer, Message: l.Message, Fix: l.Fix}
	}
	p := invalid(fields...)
	if e.Total > len(fields) {
		p.Detail = fmt.Sprintf("%d fields are not valid; errors names %d of them.", e.Total, len(fields))
	}
	return p
}

// mergedLines are the errors of both, in the order of the lines, as many as are listed.
func mergedLines(a, b *tenants.LinesError) *tenants.LinesError {
	if b == nil {
		return a
	}
	all := slices.Concat(a.Lines, b.Lines)
	slices.SortStableFunc(all, func(x, y tenants.LineError) int { return cmp.Compare(x.Line, y.Line) })
	return &tenants.LinesError{Total: a.Total + b.Total, Lines: all[:min(len(all), tenants.MaxLineErrors)]}
}

type importKey struct{}

func (a *admin) importSubjects(ctx context.Context, in *ImportQuery) (*struct{ Body ImportAnswer }, error) {
	file, _ := ctx.Value(importKey{}).(*importFile)
	bad := file.wrong.Total > 0 // then the rest is looked through, so that all that is wrong is told at once
	mode := tenants.ImportMode{CreateOnly: in.Mode == "create", DryRun: in.DryRun || bad}
	counts, err := a.store.ImportSubjects(ctx, actorFrom(ctx), file.lines, mode)
	var more *tenants.LinesError
	if bad && (err == nil || errors.As(err, &more)) {
		return nil, linesProblem(mergedLines(&file.wrong, more))
	}
	if err != nil {
		return nil, err
	}
	return &struct{ Body ImportAnswer }{ImportAnswer(counts)}, nil
}
