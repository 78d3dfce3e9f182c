package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"weir/internal/places"
	"weir/internal/tenants"
)

// Answers of the admin API take memory while they are created, and until their clients have read
// them, which a client can delay until the write timeout. Each of both is limited by tenant:
//
//   - Lists, reports and documents are created in turns, four of a tenant at once. This is as many
//     as it has connections to Postgres, so others would only wait there. With fewer processors
//     than four they are fewer, because creating them uses the processor, too.
//   - Of these, the configuration and lists of what can be large have turns among long work
//     (places.Processors). 100 000 limits of plans take a processor a tenth of a second from their
//     first row on, 200 rules some milliseconds. A list for which Postgres needs longer than
//     listPatience gives its turn back, and gets another one when it has its rows.
//   - The bytes of answers longer than longAnswer count until they are sent. A tenant has 32 MiB of
//     them. Its next long answer is refused, unless it is the only one.
//   - Exports, and configurations with subjects, have places until they are sent. A tenant without
//     any that is refused gets the next place. While it waits, slow exports end.
//
// An example: a client opens 64 streams, asks on each for a page of 9 MiB, and reads nothing. Three
// of the pages wait for it, and 61 requests get 503. Before, it could make an instance keep all 64.
// Checks take no part in this.
const (
	maxTenantCreated = 4               // on an instance with four processors or more; two with fewer
	createdWait      = 5 * time.Second // for a turn
	// listPatience is far more than the rows of a page take to be read. A filter that matches
	// nothing can have all rows looked at.
	listPatience = 200 * time.Millisecond

	longAnswer       = 64 << 10
	maxTenantUnread  = 32 << 20
	maxUnread        = 256 << 20
	maxDownloads     = 16
	maxTenantExports = 2
)

// answers limits the answers of the admin API.
type answers struct {
	created   *places.Turns[uuid.UUID] // lists and documents that are created
	large     *places.Turns[uuid.UUID] // of these, those that can take a processor for long
	unread    *places.Bytes[uuid.UUID] // bytes of long answers that are sent
	exports   *tenants.ExportPlaces    // exports until they are sent
	documents *tenants.ExportPlaces    // configurations with subjects until they are sent
	patience  time.Duration            // listPatience
}

func newAnswers(processors int, turns *places.Processors) *answers {
	// Two tenants can have as many as possible at once, except for those that are for tenants with
	// none.
	each := max(2, min(processors, maxTenantCreated))
	return &answers{
		created:   places.NewTurns[uuid.UUID](2*each, each, each/2),
		large:     turns.Long,
		unread:    places.NewBytes[uuid.UUID](maxUnread, maxTenantUnread),
		exports:   tenants.NewExportPlaces(maxDownloads, maxTenantExports, time.Now),
		documents: tenants.NewExportPlaces(maxDownloads, maxTenantExports, time.Now),
		patience:  listPatience,
	}
}

// inTurns marks an operation whose answer may be long.
func inTurns(op *huma.Operation) { op.Metadata[metaInTurns] = true }

// usesProcessor marks an operation inTurns that can take a processor for long, once Postgres has
// answered.
func usesProcessor(op *huma.Operation) { op.Metadata[metaLarge] = true }

// keepsProcessor is usesProcessor for an operation that takes a processor while it reads, for
// however long.
func keepsProcessor(op *huma.Operation) { op.Metadata[metaLarge], op.Metadata[metaKeeps] = true, true }

// inTurnsOf runs next, the handler of op, in its turns. One of what is created is taken first, and
// kept while those among long work are waited for (long_encodings.go).
func (a *answers) inTurnsOf(op *huma.Operation, next http.Handler) http.Handler {
	if op.Metadata[metaLarge] == true {
		patience := a.patience
		if op.Metadata[metaKeeps] == true {
			patience = math.MaxInt64
		}
		next = inLongTurn(a.large, patience, next)
	}
	if op.Metadata[metaInTurns] == true {
		next = inTurn(a.created, next)
	}
	return next
}

// inTurn runs next when the tenant has a turn, which ends when the answer begins.
func inTurn(turns *places.Turns[uuid.UUID], next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leave, ok := takeList(turns.TakeWithin, w, r); ok {
			requestFrom(r.Context()).untilAnswer(leave)
			next.ServeHTTP(w, r)
		}
	})
}

// inLongTurn is inTurn for turns among long work, which a handler can end before its answer. It
// ends after patience, and resumeList takes another one.
func inLongTurn(turns *places.Turns[uuid.UUID], patience time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leave, ok := takeList(turns.TakePausing, w, r); ok {
			q := requestFrom(r.Context())
			q.list = &listTurn{turns: turns, leave: leave}
			q.list.patience = time.AfterFunc(patience, q.list.pause)
			q.untilAnswer(q.endList)
			next.ServeHTTP(w, r)
		}
	})
}

// listTurn is the turn of a list or a document among long work.
type listTurn struct {
	turns    *places.Turns[uuid.UUID]
	patience *time.Timer // calls pause
	mu       sync.Mutex
	leave    func() // nil: it has none now
	paused   bool   // it ended before the rows were read
}

// pause ends the turn. The rows were not read yet: most of the time, Postgres was waited for.
func (t *listTurn) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leave != nil {
		t.leave()
		t.leave, t.paused = nil, true
	}
}

// end ends the turn, if it has one.
func (t *listTurn) end() {
	t.patience.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leave != nil {
		t.leave()
	}
	t.leave, t.paused = nil, false
}

// resumeList takes a turn again if the one of the request was paused. It waits for nothing else
// from then on.
func (q *request) resumeList(ctx context.Context) error {
	if q == nil || q.list == nil {
		return nil
	}
	t := q.list
	t.patience.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.paused {
		return nil
	}
	leave, err := t.turns.TakePausing(ctx, q.actor.TenantID(), createdWait)
	if err != nil {
		q.capacity.refuse()
		return overloaded()
	}
	t.leave, t.paused = leave, false
	return nil
}

// endList ends the turn of a list or a document, if it has one.
func (q *request) endList() {
	if q.list != nil {
		q.list.end()
	}
}

// takeList takes a turn with one of the methods of Turns, or refuses the request.
func takeList(take func(context.Context, uuid.UUID, time.Duration) (func(), error), w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	q := requestFrom(r.Context())
	leave, err := take(r.Context(), q.actor.TenantID(), createdWait)
	if err != nil {
		q.capacity.turnAway(w, r)
	}
	return leave, err == nil
}

// until takes a place of the tenant that ends with the request, when its answer was sent.
func until(ctx context.Context, kind *tenants.ExportPlaces) (*tenants.ExportPlace, error) {
	q := requestFrom(ctx)
	place, err := kind.Take(q.actor.TenantID())
	if err == nil {
		q.atEnd(place.Leave)
	}
	return place, err
}

var errUnread = errors.New("too many bytes of long answers are not read")

// count counts an answer of so many bytes until it was sent. It returns an error instead if the
// tenant has too many of them. An answer about a change is never refused.
func (a *answers) count(r *http.Request, size, status int) error {
	q := requestFrom(r.Context())
	if size <= longAnswer || q == nil {
		return nil
	}
	tenant := q.actor.TenantID()
	leave, ok := a.unread.Take(tenant, size)
	if !ok {
		if changes(r, status) {
			q.atEnd(a.unread.Hold(tenant, size))
			return nil
		}
		return errUnread
	}
	q.atEnd(leave)
	return nil
}

// changes reports whether a request that is answered with this status has changed something. POST
// requests that only read have short answers, or places of their own.
func changes(r *http.Request, status int) bool {
	if r.Method == http.MethodGet || status >= http.StatusBadRequest {
		return false
	}
	return r.URL.Query().Get("dry_run") != "true"
}

func tooManyUnread() *Problem {
	return newProblem(http.StatusServiceUnavailable, codeOverloaded,
		"Long answers to the tenant are still being sent. Read them, and try again in a second.").withRetryAfter(1)
}
