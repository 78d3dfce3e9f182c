package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// patientConn knows the deadline for reading that is in effect.
type patientConn struct {
	net.Conn
	mu       sync.Mutex
	deadline time.Time
	early    bool // an answer was written while a deadline was in effect
}

func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *patientConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.early = c.early || c.deadline.After(time.Now())
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// pass lets the time of the deadline come, and reports whether there was one.
func (c *patientConn) pass() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.deadline.IsZero() && c.Conn.SetReadDeadline(longAgo) == nil
}

// patientListener accepts patientConns, and keeps them.
type patientListener struct {
	net.Listener
	mu    sync.Mutex
	conns []*patientConn
}

func (l *patientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, &patientConn{Conn: c})
	return l.conns[len(l.conns)-1], nil
}

func (l *patientListener) last() *patientConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[len(l.conns)-1]
}

// patient returns the stack with a server whose connections are those of the listener, and whose
// writes call slow before they are answered.
func (s *adminStack) patient(slow func(ctx context.Context, c *patientConn)) (*adminStack, *patientListener) {
	s.t.Helper()
	out, l := s.in(s.t), new(patientListener)
	out.listen = func(inner net.Listener) net.Listener {
		l.Listener = inner
		return l
	}
	out.follow = func(ctx context.Context, _ limit.TenantID) { slow(ctx, l.last()) }
	out.url = out.serve(s.store)
	return out, l
}

// over sends a request with the client, and reports whether its connection was used before.
func (s *adminStack) over(client *http.Client, method, path, mediaType, body string) (status int, reused bool) {
	s.t.Helper()
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(s.t.Context(), trace), method, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	if mediaType != "" {
		r.Header.Set("Content-Type", mediaType)
	}
	resp, err := client.Do(r)
	require.NoError(s.t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, resp.Body.Close())
	return resp.StatusCode, reused
}

func oneConnection(t *testing.T) *http.Client {
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A write that takes longer than any deadline for its body is no reason to fail the next request
// on its connection. Before, each write had a deadline of 5 seconds while it ran, which cancelled
// the context of the connection: behind a proxy, requests of other clients then failed.
func TestSlowWritesKeepTheirConnections(t *testing.T) {
	s, _ := newAdminStack(t).patient(func(ctx context.Context, c *patientConn) {
		if c.pass() {
			<-ctx.Done()
		}
	})
	client := oneConnection(t)
	for i, c := range []struct{ method, path, mediaType, body string }{
		{http.MethodPatch, "/v1/tenant", jsonType, `{"name":"A"}`},
		{http.MethodPut, "/v1/plans/pro", jsonType, `{}`},
		{http.MethodPost, "/v1/bulk/subjects", csvType, "subject\nada\n"},
		{http.MethodPut, "/v1/config", jsonType, `{"plans":[]}`},
		{http.MethodDelete, "/v1/plans/pro", "", ""},
	} {
		status, reused := s.over(client, c.method, c.path, c.mediaType, c.body)
		require.Less(t, status, 300, c.path)
		require.Equal(t, i > 0, reused, "%s: the connection of the request before it", c.path)
		status, reused = s.over(client, http.MethodGet, "/v1/rules", "", "")
		require.Equal(t, http.StatusOK, status, c.path)
		require.True(t, reused, "%s: its connection is used again", c.path)
	}
}

// If a deadline cancels the context of a connection in spite of that, its answer is the last one.
func TestConnectionWithoutContextEnds(t *testing.T) {
	s, _ := newAdminStack(t).patient(func(ctx context.Context, c *patientConn) {
		_ = c.SetReadDeadline(longAgo)
		<-ctx.Done()
	})
	client := oneConnection(t)
	status, _ := s.over(client, http.MethodPatch, "/v1/tenant", jsonType, `{"name":"A"}`)
	require.Equal(t, http.StatusOK, status)
	status, reused := s.over(client, http.MethodGet, "/v1/rules", "", "")
	require.Equal(t, http.StatusOK, status)
	require.False(t, reused)
}

// No request has a deadline for reading when its body has ended, so that none can pass while its
// handler runs. Without a body, there never was one to remove it.
func TestNoDeadlineAfterTheBody(t *testing.T) {
	parent, endpoint := billingStack(t)
	s, l := parent.patient(func(context.Context, *patientConn) {})
	hook := hookOf(t, endpoint)
	for _, c := range []struct{ method, path, mediaType, body string }{
		{http.MethodPost, deviceLoginPath, jsonType, ""}, {http.MethodPost, deviceLoginPath, jsonType, `{"machine":"m"}`},
		{http.MethodPost, devicePollPath, jsonType, ""}, {http.MethodPost, hook, jsonType, ""}, {http.MethodPost, hook, jsonType, "{}"},
		{http.MethodPost, "/v1/check", jsonType, ""}, {http.MethodPost, "/v1/check", jsonType, `{"subject":"ada"}`},
		{http.MethodPost, "/v1/check/batch", jsonType, `{"checks":[{"subject":"ada"}]}`},
		{http.MethodPost, "/v1/simulate", jsonType, `{"rules":[],"requests":[]}`},
		{http.MethodPost, "/v1/bulk/subjects", csvType, ""}, {http.MethodPost, "/v1/bulk/subjects", csvType, "subject\nada\n"},
		{http.MethodGet, "/v1/bulk/subjects", "", ""}, {http.MethodGet, "/v1/usage/metered?format=csv", "", ""},
		{http.MethodPut, "/v1/plans/pro", jsonType, ""}, {http.MethodPut, "/v1/plans/pro", jsonType, `{}`},
	} {
		client := oneConnection(t)
		status, _ := s.over(client, c.method, c.path, c.mediaType, c.body)
		require.NotEqual(t, http.StatusNotFound, status, c.path)
		require.NotEqual(t, http.StatusMethodNotAllowed, status, c.path)
		conn := l.last()
		conn.mu.Lock()
		require.False(t, conn.early, "%s %s %q: %d", c.method, c.path, c.body, status)
		conn.mu.Unlock()
		client.CloseIdleConnections()
	}
}
