package dashboard

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patientConn notes whether an answer was written while a deadline for reading was in effect.
type patientConn struct {
	net.Conn
	deadline atomic.Pointer[time.Time]
	early    *atomic.Bool
}

func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.deadline.Store(&t)
	return c.Conn.SetReadDeadline(t)
}

func (c *patientConn) Write(b []byte) (int, error) {
	if t := c.deadline.Load(); t != nil && t.After(time.Now()) {
		c.early.Store(true)
	}
	return c.Conn.Write(b)
}

type patientListener struct {
	net.Listener
	early *atomic.Bool
}

func (l patientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &patientConn{Conn: c, early: l.early}, nil
}

// No form has a deadline for reading when its body has ended, so that none can pass while the page
// is created: that would cancel the context of the connection, and all later pages on it would
// fail.
func TestNoDeadlineAfterAForm(t *testing.T) {
	s := newStack(t)
	var early atomic.Bool
	server := httptest.NewUnstartedServer(s.pages.handler())
	server.Listener = patientListener{server.Listener, &early}
	server.Start()
	t.Cleanup(server.Close)
	for _, body := range []string{"", "email=ann%40example.com&password=wrong+password"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/login", strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := server.Client().Do(r)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.False(t, early.Load(), "%q: %d", body, resp.StatusCode)
	}
}

// A page of a connection whose context was cancelled is the last one on it.
func TestPageWithoutContextIsTheLast(t *testing.T) {
	s := newStack(t)
	for _, cancelled := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		if cancelled {
			cancel()
		}
		w := httptest.NewRecorder()
		s.pages.handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "https://weir.example/login", nil))
		require.Equal(t, cancelled, w.Header().Get("Connection") == "close")
		cancel()
	}
}
