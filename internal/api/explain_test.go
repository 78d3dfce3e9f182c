package api

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/places"
)

// explainedOf creates rules that do not count, and returns an explained check that lists them.
func explainedOf(t *testing.T, s *checkStack, rules int) string {
	t.Helper()
	for i := range rules {
		slug := fmt.Sprintf("rule-with-a-long-name-for-another-resource-%d", i)
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly(slug, slug, 1, "subject"))
		require.NoError(t, err)
	}
	return `{"subject":"a","explain":true}`
}

// An explained check lists all rules, so a batch has a few of them, and a tenant a few such batches
// whose answers are not sent. Before, 40 unread batches of 4.6 KB each kept 560 MiB.
func TestExplainedBatches(t *testing.T) {
	s := newCheckStack(t)
	explained := explainedOf(t, s, 5)
	batch := func(n int) string {
		return `{"checks":[` + strings.Repeat(explained+`,`, n) + `{"subject":"a"}]}`
	}
	ask, read := slowClients(t, s)
	for range maxTenantExplained {
		require.Equal(t, http.StatusOK, ask(s.key, http.MethodPost, "/v1/check/batch", batch(maxExplained)))
	}
	require.Equal(t, http.StatusServiceUnavailable, ask(s.key, http.MethodPost, "/v1/check/batch", batch(1)))
	require.Equal(t, http.StatusOK, ask(s.key, http.MethodPost, "/v1/check/batch", batch(0)))
	require.Equal(t, http.StatusOK, ask(s.other, http.MethodPost, "/v1/check/batch", batch(1)), "of another tenant")
	require.Equal(t, http.StatusUnprocessableEntity, ask(s.other, http.MethodPost, "/v1/check/batch", batch(maxExplained+1)))
	read()
	require.Equal(t, http.StatusOK, ask(s.key, http.MethodPost, "/v1/check/batch", batch(1)))
}

// Checks that list very many rules are encoded in turn. Before, a tenant with 1000 rules kept all
// processors from the checks of others, with 3 KB for each batch.
func TestLongExplanationsTakeTurns(t *testing.T) {
	s := newCheckStack(t)
	explained := strings.Replace(explainedOf(t, s, 60), "{", `{"cost":0,`, 1) // all of them are allowed
	batch := `{"checks":[` + strings.Repeat(explained+`,`, maxExplained-1) + explained + `]}`
	requireCountedInTurn(t, s, func(b *bodyTurns) *places.Turns[limit.TenantID] { return b.small }, batch, explained)
}

// requireCountedInTurn requires that the checks of a batch, which are all allowed, are decided in a
// turn of some kind, and a single one without.
func requireCountedInTurn(t *testing.T, s *checkStack, of func(*bodyTurns) *places.Turns[limit.TenantID], batch, single string) {
	bodies := &s.lane.server.Load().capacity.bodies
	turns := of(bodies)
	var held []func()
	for i := range 2 * runtime.GOMAXPROCS(0) {
		if leave, err := turns.TakeWithin(t.Context(), limit.TenantID{byte(i + 1)}, 0); err == nil {
			held = append(held, leave)
		}
	}
	bodies.wait = 0
	require.Equal(t, http.StatusOK, s.post("/v1/check/batch", batch).status, "it is counted, so it is answered after the wait")
	bodies.wait = time.Hour
	require.Equal(t, http.StatusOK, s.check(single).status, "few rules need no turn")
	answered := make(chan answer)
	go func() { answered <- s.post("/v1/check/batch", batch) }()
	for turns.Waiting() == 0 {
		runtime.Gosched()
	}
	for _, leave := range held {
		leave()
	}
	require.Equal(t, http.StatusOK, (<-answered).status)
	require.Equal(t, http.StatusOK, s.post("/v1/check/batch", batch).status, "no turn is lost")
}

// Checks that very many rules match are decided in turn. Before, a tenant kept all processors from
// the checks of others with batches of 3 KB, if its rules need no counters.
func TestWideBatchesTakeTurns(t *testing.T) {
	s := newCheckStack(t)
	for i := range limit.MaxMatchingRules {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly(fmt.Sprint("wide-", i), "wide", 1_000_000, "subject"))
		require.NoError(t, err)
	}
	single := `{"subject":"ada","resource":"wide"}`
	requireCountedInTurn(t, s, func(b *bodyTurns) *places.Turns[limit.TenantID] { return b.small },
		`{"checks":[`+strings.Repeat(single+`,`, maxBatch-1)+single+`]}`, single)
}

// Any batch is decided in a turn of a processor. Before, 250 batches of 100 checks that arrived
// together kept the processors for a tenth of a second, whatever rules matched.
func TestBatchesTakeTurns(t *testing.T) {
	s := newCheckStack(t)
	single := `{"subject":"ada","resource":"none"}`
	batches := func(b *bodyTurns) *places.Turns[limit.TenantID] { return b.batches }
	requireCountedInTurn(t, s, batches, `{"checks":[`+single+`,`+single+`]}`, single)

	bodies := &s.lane.server.Load().capacity.bodies
	require.Equal(t, runtime.GOMAXPROCS(0), bodies.batches.Most(), "batches alone have all processors")
	long := `{"checks":[` + strings.Repeat(single+`,`, maxBatch-1) + single + `]}`
	for i := range runtime.GOMAXPROCS(0) {
		_, err := bodies.batches.TakeWithin(t.Context(), limit.TenantID{byte(i + 1)}, 0)
		require.NoError(t, err)
	}
	bodies.wait = 0
	require.Equal(t, http.StatusServiceUnavailable, s.post("/v1/check/batch", long).status, "it is decoded in a turn")
}

// The record of an idempotent check is kept in Redis for a minute. It has no list of the rules that
// did not count if that is long: it took up to 49 kB.
func TestRecordsOfExplainedChecks(t *testing.T) {
	s := newCheckStack(t)
	const rules = 200
	explained := explainedOf(t, s, rules)
	first := s.check(explained, withKey("explained"))
	require.Greater(t, len(first.decision(200).Skipped), rules)
	require.Greater(t, len(first.body), maxExplainedRecord)
	again := s.check(explained, withKey("explained"))
	require.True(t, again.decision(200).Replayed)
	require.Empty(t, again.decision(200).Skipped)
	require.Equal(t, first.decision(200).Rules, again.decision(200).Rules)
}
