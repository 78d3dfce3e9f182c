package main

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
)

// A question has the arguments of check and explain.
type question struct {
	Subject    string            `arg:"" help:"The subject to check, such as user_42."`
	Resource   string            `short:"r" help:"The resource. Default: default."`
	Cost       *int64            `short:"c" help:"Units to take. Default: 1."`
	Plan       string            `short:"p" help:"Slug of a plan. Default: the subject's own."`
	Attributes map[string]string `name:"attribute" short:"a" placeholder:"NAME=VALUE" mapsep:"none" help:"Further values that rules can count by. May be repeated."`
}

type checkCmd struct{ question }

type explainCmd struct{ question }

// A decision has the fields of a response that the table shows.
type decision struct {
	Allowed bool              `json:"allowed"`
	Rules   []json.RawMessage `json:"rules"`
	Skipped []json.RawMessage `json:"skipped"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Run prints the decision.
func (c *checkCmd) Run(ctx context.Context, t *terminal) error { return c.ask(ctx, t, false) }

// Run prints the decision and the skipped rules.
func (c *explainCmd) Run(ctx context.Context, t *terminal) error { return c.ask(ctx, t, true) }

func (q *question) ask(ctx context.Context, t *terminal, explain bool) error {
	s, err := t.connect()
	if err != nil {
		return err
	}
	body, err := json.Marshal(q.body(explain))
	if err != nil {
		return err
	}
	a, err := s.do(ctx, call{method: http.MethodPost, path: "/v1/check", body: body, contentType: "application/json"})
	if err != nil {
		return err
	}
	var d decision
	if err := json.Unmarshal(a.body, &d); err != nil {
		return a.problem()
	}
	if err := d.print(t, a.body); err != nil {
		return err
	}
	if !d.Allowed {
		return errNegative
	}
	return nil
}

func (q *question) body(explain bool) map[string]any {
	body := map[string]any{"subject": q.Subject}
	if q.Resource != "" {
		body["resource"] = q.Resource
	}
	if q.Cost != nil {
		body["cost"] = *q.Cost
	}
	if q.Plan != "" {
		body["plan"] = q.Plan
	}
	if len(q.Attributes) > 0 {
		body["attributes"] = q.Attributes
	}
	if explain {
		body["dry_run"], body["explain"] = true, true
	}
	return body
}

func (d *decision) print(t *terminal, full json.RawMessage) error {
	if t.output == "json" {
		return t.printJSON(full)
	}
	if t.output == "table" {
		verdict := "allowed"
		if d.Error != nil {
			verdict = "denied: " + plain(d.Error.Message)
		}
		if _, err := t.out.Write([]byte(verdict + "\n")); err != nil {
			return err
		}
	}
	columns := []string{"rule", "mode", "allowed", "source", "limit", "remaining", "retry_after_ms", "reset_after_ms"}
	if t.output == "csv" {
		return t.print(slices.Concat(d.Rules, d.Skipped), append(columns, "reason", "attribute")...)
	}
	if len(d.Rules) > 0 {
		if err := t.print(d.Rules, columns...); err != nil {
			return err
		}
	}
	if len(d.Skipped) > 0 {
		return t.print(d.Skipped, "rule", "reason", "attribute")
	}
	return nil
}
