package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/peers"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// decide records a decision of a tenant about a subject.
func (s *adminStack) decide(tenant tenants.Actor, subject string, allowed bool) {
	s.t.Helper()
	rule := limit.NewRule("api")
	d := check.Decision{Subject: subject, Resource: "orders", Cost: 1, Allowed: allowed, Plan: "pro",
		Rules: []check.RuleDecision{{Rule: &rule, Source: "plan:pro", Quota: 10, WindowMS: 60_000, RetryAfterMS: 900, ResetAfterMS: 1000}}}
	if !allowed {
		d.Code = check.RateLimitExceeded
	}
	s.recent.Decided(tenant.TenantID(), &check.Request{}, &d, time.Now())
}

func TestListDecisions(t *testing.T) {
	s := newAdminStack(t)
	s.decide(s.a, "user_1", true)
	s.decide(s.a, "user_2", false)
	s.decide(s.a, "user_2", false)
	s.decide(s.b, "theirs", false)
	read := func(key, query string) []RecentDecision {
		var got DecisionsAnswer
		require.NoError(t, json.Unmarshal(s.call(key, http.MethodGet, "/v1/decisions"+query, nil).ok(200).body, &got))
		require.Equal(t, 1, got.Instances)
		require.Equal(t, 1, got.Answered)
		return got.Items
	}
	got := read(s.readKey, "")
	require.Len(t, got, 2)
	require.Equal(t, "user_2", got[0].Subject, "newest first")
	require.Equal(t, RecentDecision{At: got[0].At, Subject: "user_2", Resource: "orders", Plan: ptr("pro"), Cost: 1, Code: ptr("RATE_LIMIT_EXCEEDED"),
		Rule: ptr("api"), Source: ptr("plan:pro"), Limit: ptr(int64(10)), WindowMS: ptr(int64(60_000)), Remaining: ptr(int64(0)),
		RetryAfterMS: ptr(int64(900)), ResetAfterMS: ptr(int64(1000)), Repeats: 1}, got[0])
	require.Nil(t, got[1].RetryAfterMS, "it was allowed")
	require.Nil(t, got[1].Code)
	require.Len(t, read(s.readKey, "?denied=true"), 1)
	require.Len(t, read(s.readKey, "?limit=1"), 1)
	require.Len(t, read(s.readKey, "?prefix=user_&rule=api&resource=orders"), 2)
	require.Empty(t, read(s.readKey, "?subject=theirs"), "another tenant's")
	require.Empty(t, read(s.readKey, "?since=2999-01-01T00:00:00Z"))
	require.Len(t, read(s.other, ""), 1)
}

// events reads server-sent events of a stream.
type events struct {
	t    *testing.T
	body io.ReadCloser
	scan *bufio.Scanner
}

// stream opens a stream, whose reading ends after two minutes at the latest.
func (s *adminStack) stream(key, query string) *events {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	s.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/v1/decisions/stream"+query, nil)
	require.NoError(s.t, err)
	r.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(s.t, http.StatusOK, response.StatusCode)
	require.Equal(s.t, streamType, response.Header.Get("Content-Type"))
	e := &events{t: s.t, body: response.Body, scan: bufio.NewScanner(response.Body)}
	require.True(s.t, e.scan.Scan(), e.scan.Err())
	require.Equal(s.t, ": open", e.scan.Text())
	return e
}

// next returns the next event; "" at the end of the stream.
func (e *events) next() (name, data string) {
	e.t.Helper()
	for e.scan.Scan() {
		line := e.scan.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			name = line[7:]
		case strings.HasPrefix(line, "data: "):
			data = line[6:]
		case line == "" && name != "":
			return name, data
		}
	}
	require.NoError(e.t, e.scan.Err())
	return "", ""
}

// A stream has the decisions of its tenant that pass its filter, and none of before.
func TestStreamDecisions(t *testing.T) {
	s := newAdminStack(t)
	s.decide(s.a, "before", false)
	all, denied := s.stream(s.readKey, ""), s.stream(s.readKey, "?denied=true&prefix=user_")
	s.decide(s.b, "theirs", false)
	s.decide(s.a, "user_1", true)
	s.decide(s.a, "other", false)
	s.decide(s.a, "user_2", false)
	for _, want := range []string{"user_1", "other", "user_2"} {
		name, data := all.next()
		require.Equal(t, "decision", name)
		var got RecentDecision
		require.NoError(t, json.Unmarshal([]byte(data), &got))
		require.Equal(t, want, got.Subject)
		require.Equal(t, "api", *got.Rule)
	}
	name, data := denied.next()
	require.Equal(t, "decision", name)
	require.Contains(t, data, `"subject":"user_2"`)

	// It ends when it was asked to.
	name, _ = s.stream(s.readKey, "?for=1s").next()
	require.Empty(t, name)
}

// A revoked key sees nothing more.
func TestStreamEndsWithItsKey(t *testing.T) {
	s := newAdminStack(t)
	key, secret, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Name: "tail", Scopes: []tenants.Scope{tenants.ScopeRead}})
	require.NoError(t, err)
	stream := s.stream(secret.Secret(), "")
	s.call(s.key, http.MethodDelete, "/v1/keys/"+key.ID.String(), nil).ok(204)
	s.authenticator.Changed(t.Context(), s.a.TenantID())
	name, data := stream.next()
	require.Equal(t, "end", name)
	require.Contains(t, data, codeKeyRevoked)
	name, _ = stream.next()
	require.Empty(t, name, "the server closes the stream")
}

// A key that no longer works from the address of a stream sees nothing more there.
func TestStreamEndsWithItsAddress(t *testing.T) {
	s := newAdminStack(t)
	key, secret, err := s.store.CreateKey(t.Context(), s.a, tenants.NewAPIKey{Name: "tail", Scopes: []tenants.Scope{tenants.ScopeRead}})
	require.NoError(t, err)
	stream := s.stream(secret.Secret(), "")
	s.call(s.key, http.MethodPatch, "/v1/keys/"+key.ID.String(), obj{"addresses": []string{"192.0.2.0/24"}}).ok(200)
	s.authenticator.Changed(t.Context(), s.a.TenantID())
	name, data := stream.next()
	require.Equal(t, "end", name)
	require.Contains(t, data, codeAddressNotAllowed)
	name, _ = stream.next()
	require.Empty(t, name, "the server closes the stream")
}

// A tenant cannot use up the streams of the others.
func TestStreamsAreLimited(t *testing.T) {
	s := newAdminStack(t)
	for range recent.MaxTenantFollowers {
		s.stream(s.readKey, "")
	}
	p := s.call(s.readKey, http.MethodGet, "/v1/decisions/stream", nil)
	p.problem(http.StatusTooManyRequests, codeTooManyStreams)
	require.NotEmpty(t, p.header.Get("Retry-After"))
	s.stream(s.other, "")
}

// A stream that ends for one of another tenant says so. If its client connects again, it ends none.
func TestStreamEndsForAnotherTenant(t *testing.T) {
	s := newAdminStack(t)
	first := s.stream(s.readKey, "")
	for range recent.MaxTenantFollowers - 1 {
		s.stream(s.readKey, "")
	}
	for range recent.MaxFollowers - recent.MaxTenantFollowers {
		follower, err := s.recent.Follow(t.Context(), uuid.New())
		require.NoError(t, err)
		defer follower.Close()
	}
	s.stream(s.other, "")
	last := ""
	for first.scan.Scan() {
		if line := first.scan.Text(); line != "" {
			last = line
		}
	}
	require.NoError(t, first.scan.Err())
	require.Equal(t, ": ended for a stream of another tenant", last)
	s.call(s.readKey, http.MethodGet, "/v1/decisions/stream", nil).problem(http.StatusTooManyRequests, codeTooManyStreams)
}

// A stream ends when the process stops, and does not delay it.
func TestStreamEndsWithTheProcess(t *testing.T) {
	s := newAdminStack(t)
	stream := s.stream(s.readKey, "")
	s.stop()
	name, _ := stream.next()
	require.Empty(t, name)
}

// A list of decisions is created in the tenant's turn, which is not kept while other instances are
// asked, and ends when the answer begins: hundreds of long items take a millisecond, and no
// database limits how often.
func TestListedDecisionsTakeTurns(t *testing.T) {
	t.Parallel()
	ctx, q := encodingRequest(t, tenants.AsSystem(uuid.UUID{1}, "test"))
	a := &admin{recent: recent.New(recent.Options{Peers: peers.New(1, nil, prometheusRegistry())})}
	short, other := q.capacity.bodies.small, limit.TenantID{2}
	leave, err := short.Take(t.Context(), other)
	require.NoError(t, err)
	_, err = a.listDecisions(ctx, &DecisionsParams{})
	p, _ := err.(*Problem)
	requireOverloaded(t, p)
	leave()
	_, err = a.listDecisions(ctx, &DecisionsParams{})
	require.NoError(t, err)
	_, err = short.TakeWithin(t.Context(), other, 0)
	require.Error(t, err, "it is encoded in the same turn")
	q.capacity.enter()
	q.WriteHeader(http.StatusOK)
	leave, err = short.TakeWithin(t.Context(), other, 0)
	require.NoError(t, err)
	leave()
}
