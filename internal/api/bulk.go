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

	"weir/internal/places"
	"weir/internal/tenants"
)

// Bulk transfer of subjects: a GET streams all of them, and a POST reads many. Both go through the
// guard like all operations, except for their bodies, which are too large for memory.
// bulk_export.go writes a body as it is read from Postgres; bulk_import.go reads it line by line.

const (
	olderLinesType = "application/x-ndjson" // the older name of jsonLinesType

	maxImports = 2 // concurrent, per instance; each may take some 200 MiB of memory
	maxExports = 4 // concurrent, per instance; each uses a connection to Postgres

	bulkRetryAfter = 5 // seconds
	// bulkWait is how long the place of a refused tenant in the queue is kept: it may ask a little
	// later than bulkRetryAfter says.
	bulkWait = 3 * bulkRetryAfter * time.Second
	// bulkQueue is the length of the queue.
	bulkQueue = 1000
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
	Multiplier  Optional[int64]                               `json:"multiplier,omitempty" minimum:"1" maximum:"1000000" doc:"Multiplies the limits that the plan gives; null: 1"`
	Overrides   Optional[map[string]Optional[ConfigOverride]] `json:"overrides,omitempty" doc:"By the slug of the rule, at most 1000; omitted overrides are unchanged, null deletes one"`
}

// ImportAnswer has the counts of an import or of its dry run.
type ImportAnswer struct {
	Created   int `json:"created" doc:"Subjects that were not registered"`
	Updated   int `json:"updated" doc:"Subjects that were registered and differed"`
	Unchanged int `json:"unchanged" doc:"Subjects that did not change"`
}

// ImportQuery has the options of an import.
type ImportQuery struct {
	Mode   string `query:"mode" enum:"upsert,create" default:"upsert" doc:"create: an already registered subject is an error"`
	DryRun bool   `query:"dry_run" doc:"Answer what would happen, and change nothing"`
}

// SubjectFilterParams select subjects.
type SubjectFilterParams struct {
	Prefix string `query:"prefix" doc:"Only subjects that begin with this text, ordered by their bytes"`
	Plan   string `query:"plan" doc:"Only subjects with this plan"`
	State  string `query:"state" enum:"active,blocked,exempt" doc:"Only subjects in this state"`
	Label  string `query:"label" doc:"Only subjects with this label: NAME=VALUE, or NAME for any value"`
}

// ExportQuery selects the subjects to export, and the format.
type ExportQuery struct {
	SubjectFilterParams
	Format string `query:"format" enum:"jsonl,csv" doc:"Overrides the header Accept; default jsonl. CSV has no overrides"`
}

// bulkRoutes adds both operations. No subject can have their path.
func (a *admin) bulkRoutes() {
	const path = "/v1/bulk/subjects"
	text := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Description: "One BulkSubject per line"}}
	table := &huma.MediaType{Schema: &huma.Schema{
		Type: huma.TypeString, Description: "The columns subject, plan, state, billing_ref, cycle_anchor, labels (a JSON object), plan_version and multiplier, with their names in the first line",
	}}
	schemaOf[BulkSubject](a.api) // a component of the document, for readers of the previous line

	get := a.operation(http.MethodGet, path, "export-subjects", "Export subjects", nil)
	get.Tags = []string{tagOf("/v1/subjects")}
	get.Description = "All subjects that match the filters, as of one instant, ordered by their bytes. docs/subjects.md explains the formats."
	get.Metadata[metaSlots] = newSlots(maxExports, time.Now)
	get.Responses["200"] = &huma.Response{
		Description: "OK", Content: map[string]*huma.MediaType{jsonLinesType: text, csvType: table},
	}
	register(a, get, a.exportSubjects)

	post := a.operation(http.MethodPost, path, "import-subjects", "Import subjects", nil)
	post.Tags = get.Tags
	post.Description = "All or nothing. Up to 64 MiB and 200 000 lines. Omitted fields are unchanged. " +
		"Errors point at line:N/FIELD. docs/subjects.md explains the formats."
	post.DefaultStatus = http.StatusOK
	imports := newSlots(maxImports, time.Now)
	post.Metadata[metaSlots] = imports
	post.Metadata[metaReader] = bodyReader(func(r *http.Request, mediaType string) (context.Context, []byte, *Problem) {
		return a.readImport(r, mediaType, imports)
	})
	post.Parameters = append(post.Parameters, idempotencyParam())
	post.Errors = append(post.Errors, http.StatusUnprocessableEntity)
	post.RequestBody = &huma.RequestBody{
		Required: true, Content: map[string]*huma.MediaType{csvType: table, jsonLinesType: text, olderLinesType: text},
	}
	register(a, post, a.importSubjects)
}

// bodyReader reads a body that is too large for memory. Its result is passed to the handler in the
// returned context. digest identifies the body.
type bodyReader func(r *http.Request, mediaType string) (ctx context.Context, digest []byte, p *Problem)

// readStream is readDocument for an operation that reads its own body.
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

// slots limit concurrent transfers: one for each tenant, so that no tenant can block the others. A
// tenant that is refused gets a place in a queue, and free slots are kept for those before it.
// While somebody is in the queue, a slow import is canceled (importBusyRate).
type slots struct {
	mu      sync.Mutex
	most    int
	running map[uuid.UUID]transfer // by tenant
	line    *places.Line[uuid.UUID]
}

// wanted reports whether a tenant waits for a slot.
func (s *slots) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.Len() > 0
}

// transfer identifies a running transfer.
type transfer struct {
	apiKey         uuid.UUID
	idempotencyKey string // "": none
}

func newSlots(most int, now func() time.Time) *slots {
	return &slots{most: most, running: map[uuid.UUID]transfer{}, line: places.NewLine[uuid.UUID](bulkQueue, bulkWait, now)}
}

// take returns a function that releases the slot. If the running request is the same one with the
// same key, the problem says so, as the store would say if it had read the body: the client waits
// for that answer and not for a slot.
func (s *slots) take(actor tenants.Actor, idempotencyKey string) (release func(), p *Problem) {
	return s.takeFor(actor.TenantID(), transfer{actor.KeyID(), idempotencyKey})
}

func (s *slots) takeFor(tenant uuid.UUID, this transfer) (release func(), p *Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	running, busy := s.running[tenant]
	switch {
	case busy && running == this && this.idempotencyKey != "":
		return nil, newProblem(http.StatusConflict, codeIdempotencyKeyInUse,
			"The first request with this Idempotency-Key is still running. Try again.").withRetryAfter(bulkRetryAfter)
	case busy:
		return nil, newProblem(http.StatusTooManyRequests, codeBulkBusy,
			"This instance already runs an import or export of the tenant. Wait until it ends.").withRetryAfter(bulkRetryAfter)
	case len(s.running)+s.line.Before(tenant) >= s.most:
		s.line.Join(tenant)
		return nil, newProblem(http.StatusTooManyRequests, codeBulkBusy,
			"This instance runs its maximum number of transfers.").withRetryAfter(bulkRetryAfter)
	}
	s.line.Leave(tenant)
	s.running[tenant] = this
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, tenant)
	}, nil
}

// deadlines changes the server's timeouts for one request. If the connection does not support this,
// they stay unchanged.
type deadlines struct{ connection *http.ResponseController }

func deadlinesOf(ctx context.Context) deadlines {
	return deadlines{http.NewResponseController(requestFrom(ctx).ResponseWriter)}
}

// read sets the deadline for the body. It must not be set when the body has ended
// (setBodyDeadline).
func (d deadlines) read(after time.Duration) { _ = d.connection.SetReadDeadline(time.Now().Add(after)) }

func (d deadlines) write(after time.Duration) {
	_ = d.connection.SetWriteDeadline(time.Now().Add(after))
}

// linesProblem returns the 422 that lists invalid lines.
func linesProblem(e *tenants.LinesError) *Problem {
	fields := make([]ProblemField, len(e.Lines))
	for i, l := range e.Lines {
		pointer := l.Field
		if !strings.HasPrefix(pointer, "/") { // in the notation of the store
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

// mergedLines returns the errors of both, in the order of the lines, up to the maximum.
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
	bad := file.wrong.Total > 0 // the rest is checked too, so that all errors are reported at once
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
