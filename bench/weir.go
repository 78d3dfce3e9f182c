package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// rule is a rule in the JSON of the admin API.
type rule struct {
	Slug      string `json:"slug"`
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	Window    string `json:"window"`
	Precision string `json:"precision,omitempty"`

	Consistency string  `json:"consistency,omitempty"`
	Anchor      string  `json:"anchor,omitempty"`
	WarnAt      float64 `json:"warn_at,omitempty"`
	Overage     string  `json:"overage,omitempty"`
	Metering    string  `json:"metering,omitempty"`
}

// tenant is a tenant that was created for this run.
type tenant struct {
	slug  string
	rules []rule
	key   string // its API key
}

// setupCallers is the number of concurrent requests to the admin API during setup.
const setupCallers = 8

// admin is a client of the admin API.
type admin struct {
	url    string
	client *http.Client
}

func newAdmin(addr string) *admin {
	transport := &http.Transport{MaxIdleConnsPerHost: setupCallers}
	return &admin{url: "http://" + addr, client: &http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

// post sends a body and decodes the response into out, unless out is nil. It returns the status,
// and an error if the status is neither 2xx nor 429.
func (a *admin) post(ctx context.Context, key, path string, body, out any) (int, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+path, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err
	}
	if response.StatusCode >= 300 && response.StatusCode != http.StatusTooManyRequests {
		return response.StatusCode, fmt.Errorf("POST %s: %s: %s", path, response.Status, answer)
	}
	if out == nil {
		return response.StatusCode, nil
	}
	return response.StatusCode, json.Unmarshal(answer, out)
}

// create creates a tenant, with its first key.
func (a *admin) create(ctx context.Context, operator string, t *tenant) error {
	var made struct {
		Key struct{ Secret string } `json:"key"`
	}
	if _, err := a.post(ctx, operator, "/v1/tenants", map[string]string{"slug": t.slug}, &made); err != nil {
		return err
	}
	if t.key = made.Key.Secret; t.key == "" {
		return fmt.Errorf("tenant %s has no key in the response", t.slug)
	}
	return nil
}

// rule creates the rules of a tenant.
func (a *admin) rule(ctx context.Context, t *tenant) error {
	for _, r := range t.rules {
		if _, err := a.post(ctx, t.key, "/v1/rules", r, nil); err != nil {
			return fmt.Errorf("tenant %s: %w", t.slug, err)
		}
	}
	return nil
}

// first sends one check of a tenant, and verifies that exactly its rules decide it.
func (a *admin) first(ctx context.Context, t *tenant) error {
	var decision struct {
		Rules    []struct{ Rule string }
		Degraded bool
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := a.post(ctx, t.key, "/v1/check", map[string]string{"subject": "first"}, &decision)
		switch {
		case err == nil && (len(decision.Rules) != len(t.rules) || decision.Degraded):
			return fmt.Errorf("a check of tenant %s was answered by %d rules, degraded %t; it has %d rules", t.slug, len(decision.Rules), decision.Degraded, len(t.rules))
		case err == nil:
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("tenant %s: %w", t.slug, errors.Join(ctx.Err(), err))
		}
	}
}

// each calls do for every tenant, with a few concurrent calls, and returns the first error.
func each(ctx context.Context, tenants []*tenant, do func(context.Context, *tenant) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan *tenant)
	var callers sync.WaitGroup
	for range setupCallers {
		callers.Go(func() {
			for t := range work {
				if err := do(ctx, t); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for _, t := range tenants {
		select {
		case work <- t:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	callers.Wait()
	return context.Cause(ctx)
}

// prepare creates the tenants, and starts a new Weir that has loaded each of them. It restarts Weir
// before each step, because keys that are not known at startup are looked up at a bounded rate.
func (s *stage) prepare(ctx context.Context, tenants []*tenant) error {
	for _, step := range []struct {
		name string
		do   func(context.Context, *admin, *tenant) error
	}{
		{"make tenants", func(ctx context.Context, a *admin, t *tenant) error { return a.create(ctx, s.operator, t) }},
		{"make rules", func(ctx context.Context, a *admin, t *tenant) error { return a.rule(ctx, t) }},
		{"send first checks", func(ctx context.Context, a *admin, t *tenant) error { return a.first(ctx, t) }},
	} {
		if err := s.restartWeir(ctx); err != nil {
			return err
		}
		api := newAdmin(s.servers[weirName].http)
		err := each(ctx, tenants, func(ctx context.Context, t *tenant) error { return step.do(ctx, api, t) })
		api.client.CloseIdleConnections()
		if err != nil {
			return fmt.Errorf("%s: %w%s", step.name, err, s.servers[weirName].lastWords())
		}
	}
	return nil
}
