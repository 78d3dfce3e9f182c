package main

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
)

type (
	rulesCmd   struct{}
	plansCmd   struct{}
	keysCmd    struct{}
	subjectCmd struct {
		Prefix string `help:"Only subjects that begin with this text."`
		Plan   string `help:"Only subjects with this plan."`
	}
)

// Run lists the rules.
func (rulesCmd) Run(ctx context.Context, t *terminal) error {
	return t.list(ctx, "/v1/rules", nil, "slug", "resource", "algorithm", "limit", "burst", "window", "mode")
}

// Run lists the plans.
func (plansCmd) Run(ctx context.Context, t *terminal) error {
	return t.list(ctx, "/v1/plans", nil, "slug", "name", "default", "newest_version")
}

// Run lists the keys.
func (keysCmd) Run(ctx context.Context, t *terminal) error {
	return t.list(ctx, "/v1/keys", nil, "id", "name", "scopes", "last4", "expires_at")
}

// Run lists the subjects.
func (c *subjectCmd) Run(ctx context.Context, t *terminal) error {
	query := url.Values{}
	if c.Prefix != "" {
		query.Set("prefix", c.Prefix)
	}
	if c.Plan != "" {
		query.Set("plan", c.Plan)
	}
	return t.list(ctx, "/v1/subjects", query, "subject", "plan", "state", "billing_ref")
}

// list prints all pages of a list.
func (t *terminal) list(ctx context.Context, path string, query url.Values, columns ...string) error {
	items, err := t.items(ctx, path, query, math.MaxInt)
	if err != nil {
		return err
	}
	return t.print(items, columns...)
}

// items reads the pages of a list, until it has so many items.
func (t *terminal) items(ctx context.Context, path string, query url.Values, most int) (items []json.RawMessage, err error) {
	s, err := t.connect()
	if err != nil {
		return nil, err
	}
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", "100")
	for len(items) < most {
		a, err := s.do(ctx, call{method: http.MethodGet, path: path, query: query})
		if err != nil {
			return nil, err
		}
		var page struct {
			Items      []json.RawMessage `json:"items"`
			NextCursor string            `json:"next_cursor"`
		}
		if err := json.Unmarshal(a.body, &page); err != nil {
			return nil, a.problem()
		}
		items = append(items, page.Items...)
		if page.NextCursor == "" {
			break
		}
		query.Set("cursor", page.NextCursor)
	}
	return items[:min(len(items), max(most, 0))], nil
}
