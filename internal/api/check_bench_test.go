package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants/tenantstest"
)

// discard is a ResponseWriter that keeps nothing but the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkHandler is a whole check, from the parsed head of a request to its written answer, with the
// counters in memory: what the HTTP side costs.
func BenchmarkHandler(b *testing.B) {
	s := &checkStack{db: tenantstest.New(b), registry: prometheusRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(b)
	h := New(Config{Headers: bothStyles}, s.newDeps(b, memoryEngine()))
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"allowed": {`{"subject":"user_42","resource":"bulk","cost":0}`, 200},
		"denied":  {`{"subject":"user_42","resource":"costly","cost":11}`, 429},
		"refused": {`{"subject":"user_42","resource":"bulk","cost":-1}`, 422},
	} {
		b.Run(name, func(b *testing.B) {
			body := strings.NewReader(c.body)
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/check", nil)
			r.Header.Set("Authorization", "Bearer "+s.key)
			r.Header.Set("Content-Type", "application/json")
			r.Body, r.ContentLength = io.NopCloser(body), body.Size()
			w := &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				body.Reset(c.body)
				clear(w.header)
				h.ServeHTTP(w, r)
			}
			require.Equal(b, c.status, w.status)
		})
	}
}

// BenchmarkBatch is a batch of a hundred checks, with the counters in memory.
func BenchmarkBatch(b *testing.B) {
	s := &checkStack{db: tenantstest.New(b), registry: prometheusRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(b)
	h := New(Config{Headers: bothStyles}, s.newDeps(b, memoryEngine()))
	text := `{"checks":[`
	for i := range 100 {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(`{"subject":"user_%05d","resource":"bulk","cost":1}`, i)
	}
	text += "]}"
	body := strings.NewReader(text)
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/check/batch", nil)
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	r.Body, r.ContentLength = io.NopCloser(body), body.Size()
	w := &discard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(text)
		clear(w.header)
		h.ServeHTTP(w, r)
	}
	require.Equal(b, http.StatusOK, w.status)
}
