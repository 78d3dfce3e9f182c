package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/overload"
	"weir/internal/places"
	"weir/internal/tenants"
)

// encodingRequest returns a request of a tenant on an instance with one turn of each kind. A
// request that finds it taken is refused at once.
func encodingRequest(t *testing.T, actor tenants.Actor) (context.Context, *request) {
	c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(100), places.NewProcessors(2))
	c.bodies = newBodyTurns(places.NewProcessors(2))
	c.bodies.wait, c.bodies.reading = 0, 0
	q := &request{ResponseWriter: httptest.NewRecorder(), capacity: c, authed: true, actor: actor}
	return context.WithValue(t.Context(), requestKey{}, q), q
}

func manyLimits(n int) map[string]limit.Limit {
	limits := map[string]limit.Limit{}
	for i := range n {
		limits[fmt.Sprint("rule-", i)] = limit.Limit{Limit: int64(i + 1)}
	}
	return limits
}

// Documents with very many values are encoded when it is the tenant's turn, others at once. Before,
// four requests of a tenant at a time encoded YAML for more than a second each, on all processors.
func TestLongAnswersTakeTurns(t *testing.T) {
	t.Parallel()
	ctx, q := encodingRequest(t, tenants.AsSystem(uuid.UUID{1}, "test"))
	bodies, other := &q.capacity.bodies, limit.TenantID{2}
	overloaded := func(err error) {
		t.Helper()
		p, _ := err.(*Problem)
		requireOverloaded(t, p)
	}
	leaveLarge, err := bodies.large.Take(t.Context(), other)
	require.NoError(t, err)
	document := func(n int) *tenants.Document {
		return &tenants.Document{Plans: []tenants.Plan{{Limits: manyLimits(n)}}}
	}
	older := &tenants.Document{Plans: []tenants.Plan{{Older: []tenants.PlanVersion{{Limits: manyLimits(fewEncoded + 1)}}}}}
	const fewYAML = fewEncoded / yamlValue
	encode := func(d *tenants.Document, inYAML bool) error {
		body, err := encodeDocument(ctx, d, inYAML)
		require.Equal(t, err == nil, len(body) > 0)
		return err
	}
	overloaded(encode(document(fewEncoded+1), false))
	overloaded(encode(older, false))
	require.NoError(t, encode(document(fewEncoded), false))
	overloaded(encode(document(fewYAML+1), true))
	require.NoError(t, encode(document(fewYAML), true))
	leaveLarge()
	require.NoError(t, encode(document(fewEncoded+1), false))
	leave, err := bodies.yaml.TakeWithin(t.Context(), other, 0)
	require.NoError(t, err)
	overloaded(encode(document(fewYAML+1), true))
	leave()
	require.NoError(t, encode(document(fewYAML+1), true))
	for _, turns := range []func(context.Context, limit.TenantID) (func(), error){bodies.yaml.Take, bodies.large.Take} {
		leave, err = turns(t.Context(), other)
		require.NoError(t, err, "the turns end with the encoding")
		leave()
	}
}

// A document that the client has is not encoded.
func TestUnchangedDocumentsAreNotEncoded(t *testing.T) {
	s := newAdminStack(t)
	rules := make([]obj, 25)
	for i := range rules {
		rules[i] = obj{"slug": fmt.Sprint("rule-", i), "limit": 1, "window": "1m"}
	}
	s.call(s.key, "PUT", "/v1/config", obj{"rules": rules}).ok(200)
	ctx, q := encodingRequest(t, s.a)
	leave, err := q.capacity.bodies.yaml.Take(t.Context(), limit.TenantID{2})
	require.NoError(t, err)
	defer leave()
	a := &admin{store: s.store, answers: newAnswers(2, places.NewProcessors(2))}
	_, version, err := s.store.Document(ctx, s.a, false)
	require.NoError(t, err)
	get := func(format string, noneMatch ...string) error {
		_, err := a.getConfig(context.WithValue(ctx, conditionsKey{}, conditions{noneMatch: noneMatch, accept: yamlType}), &ConfigQuery{Format: format})
		return err
	}
	require.Error(t, get(""))
	require.Error(t, get("yaml", `"v0"`))
	require.NoError(t, get("json"))
	require.NoError(t, get("yaml", etagOf(version)))
}

// The lists of plans and routes, and the configuration, are created on half of the processors, from
// the first row that is read of them until the answer begins.
func TestLargeListsTakeTurns(t *testing.T) {
	t.Parallel()
	actor, other := tenants.AsSystem(uuid.UUID{1}, "test"), uuid.UUID{2}
	ctx, q := encodingRequest(t, actor)
	a := newAnswers(2, places.NewProcessors(2))
	free := func(turns *places.Turns[uuid.UUID]) bool {
		leave, err := turns.TakeWithin(t.Context(), other, 0)
		if err == nil {
			leave()
		}
		return err == nil
	}
	op := &huma.Operation{Metadata: map[string]any{metaInTurns: true, metaLarge: true}}
	h := a.inTurnsOf(op, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		require.False(t, free(a.large))
		require.True(t, free(a.created), "that is for other lists")
		q.capacity.enter()
		w.WriteHeader(http.StatusOK)
		require.True(t, free(a.large), "the turn ends when the answer begins")
	}))
	leave, err := a.large.Take(t.Context(), other)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ServeHTTP(q, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/plans", nil))
	}()
	for a.large.Waiting() == 0 {
		runtime.Gosched()
	}
	// Before, two documents that waited to be encoded, with the turns of their tenant in what is
	// created, waited for a third one that had the long turn and waited for such a turn: for five
	// seconds, in which no other tenant's long work had its turn.
	ownTurn, err := a.created.TakeWithin(t.Context(), actor.TenantID(), 0)
	require.NoError(t, err)
	_, err = a.created.TakeWithin(t.Context(), actor.TenantID(), 0)
	require.Error(t, err, "the request that waits has one of two")
	ownTurn()
	leave()
	<-done
	for range 4 {
		_, err := a.created.TakeWithin(t.Context(), uuid.New(), 0)
		require.NoError(t, err, "no turn is lost")
	}

	// A document gives its turn back before it takes that in which it is encoded.
	inLongTurn(a.large, time.Hour, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		_, err := encodeDocument(ctx, &tenants.Document{Plans: []tenants.Plan{{Limits: manyLimits(fewEncoded)}}}, true)
		require.NoError(t, err)
		require.True(t, free(a.large))
	})).ServeHTTP(q, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/config", nil))
}

// A list whose rows take long to be read has no turn meanwhile. Before, a filter that matches none
// of a million overrides kept the only turn for seconds, which all other tenants waited for.
func TestListsPauseWhilePostgresReads(t *testing.T) {
	t.Parallel()
	for name, keeps := range map[string]bool{"list": false, "document": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, q := encodingRequest(t, tenants.AsSystem(uuid.UUID{1}, "test"))
			a := newAnswers(2, places.NewProcessors(2))
			a.patience = 0
			op := &huma.Operation{Metadata: map[string]any{metaInTurns: true, metaLarge: true, metaKeeps: keeps}}
			a.inTurnsOf(op, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if keeps {
					_, err := a.large.TakeWithin(t.Context(), uuid.UUID{2}, 0)
					require.Error(t, err, "it uses the processor while it reads")
					return
				}
				leave, err := a.large.Take(t.Context(), uuid.UUID{2})
				require.NoError(t, err)
				canceled, cancel := context.WithCancel(ctx)
				cancel()
				require.Error(t, q.resumeList(canceled), "there is no turn yet")
				leave()
				require.NoError(t, q.resumeList(ctx))
				_, err = a.large.TakeWithin(t.Context(), uuid.UUID{2}, 0)
				require.Error(t, err, "the answer is created in a turn")
				q.capacity.enter()
				w.WriteHeader(http.StatusOK)
				leave, err = a.large.TakeWithin(t.Context(), uuid.UUID{2}, 0)
				require.NoError(t, err, "no turn is lost")
				leave()
			})).ServeHTTP(q, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/overrides", nil))
		})
	}
}

// A list of the API takes its turn again when its rows were read.
func TestListsResumeTheirTurn(t *testing.T) {
	s := newAdminStack(t)
	long := s.processors.Long
	answered := make(chan int)
	var held []func()
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "BEGIN; LOCK TABLE overrides IN ACCESS EXCLUSIVE MODE")
		require.NoError(t, err)
		go func() { answered <- s.call(s.key, "GET", "/v1/overrides", nil).status }()
		for waits := false; !waits; {
			require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'overrides'::regclass AND NOT granted)").Scan(&waits))
		}
		for len(held) < long.Most() { // the list leaves its own after a while
			if leave, err := long.TakeWithin(t.Context(), uuid.New(), 0); err == nil {
				held = append(held, leave)
			}
		}
		_, err = conn.Exec(ctx, "ROLLBACK")
		require.NoError(t, err)
	})
	for long.Waiting() == 0 {
		runtime.Gosched()
	}
	for _, leave := range held {
		leave()
	}
	require.Equal(t, http.StatusOK, <-answered)
	leave, err := long.TakeWithin(t.Context(), uuid.UUID{2}, 0)
	require.NoError(t, err, "no turn is lost")
	leave()
}

// Long reports of usage are encoded in turn.
func TestLongReportsTakeTurns(t *testing.T) {
	t.Parallel()
	ctx, q := encodingRequest(t, tenants.AsSystem(uuid.UUID{1}, "test"))
	leave, err := q.capacity.bodies.large.Take(t.Context(), limit.TenantID{2})
	require.NoError(t, err)
	require.Error(t, encodeLong(ctx, fewEncoded+1, func() { t.Error("without a turn") }))
	encoded := false
	require.NoError(t, encodeLong(ctx, fewEncoded, func() { encoded = true }))
	require.True(t, encoded)
	leave()
	require.NoError(t, encodeLong(ctx, fewEncoded+1, func() {}))
}

// The limits of a subject under many rules take turns among short work. Before, 32 connections of a
// tenant with 100 rules kept the processors from the checks of others.
func TestLimitsTakeTurns(t *testing.T) {
	s := newAdminStack(t)
	ctx, q := encodingRequest(t, s.a)
	ctx = context.WithValue(ctx, conditionsKey{}, conditions{})
	a := &admin{store: s.store, checker: s.checker}
	limits := func() error {
		_, err := a.getLimits(ctx, &LimitsQuery{SubjectPath: SubjectPath{Subject: "ada"}})
		return err
	}
	withRules := func(n int) {
		rules := make([]obj, n)
		for i := range rules {
			rules[i] = obj{"slug": fmt.Sprint("rule-", i), "limit": 1, "window": "1m", "resource": fmt.Sprint("r", i)}
		}
		s.call(s.key, "PUT", "/v1/config", obj{"rules": rules}).ok(200)
		a.policies = check.NewPolicies(s.store, check.NewKeys([16]byte{}), slog.New(slog.DiscardHandler), check.NewMetrics(prometheusRegistry()))
	}
	leave, err := q.capacity.bodies.small.Take(t.Context(), limit.TenantID{2})
	require.NoError(t, err)
	withRules(fewListed)
	require.NoError(t, limits())
	withRules(fewListed + 1)
	require.Error(t, limits())
	leave()
	require.NoError(t, limits())
	_, err = q.capacity.bodies.small.TakeWithin(t.Context(), limit.TenantID{2}, 0)
	require.Error(t, err, "it has a turn until the answer begins")
	q.capacity.enter()
	q.WriteHeader(http.StatusOK)
	leave, err = q.capacity.bodies.small.TakeWithin(t.Context(), limit.TenantID{2}, 0)
	require.NoError(t, err)
	leave()
}
