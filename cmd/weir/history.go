package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

type usageCmd struct {
	Grain   string `enum:"minute,hour,day" default:"hour" help:"Length of the intervals: ${enum}."`
	From    string `help:"Beginning, RFC 3339. Default: the last hour, day or 30 days, by grain."`
	To      string `help:"End, RFC 3339. Default: now."`
	GroupBy string `short:"g" placeholder:"FIELDS" help:"rule, plan, resource, several of them with commas, or subject."`
	Rule    string `help:"Only this rule."`
	Subject string `help:"Only this subject, if it is among the busiest."`
}

// Run prints the usage.
func (c *usageCmd) Run(ctx context.Context, t *terminal) error {
	query := url.Values{"grain": {c.Grain}}
	for name, value := range map[string]string{"from": c.From, "to": c.To, "group_by": c.GroupBy, "rule": c.Rule, "subject": c.Subject} {
		if value != "" {
			query.Set(name, value)
		}
	}
	s, err := t.connect()
	if err != nil {
		return err
	}
	a, err := s.do(ctx, call{method: http.MethodGet, path: "/v1/usage", query: query})
	if err != nil {
		return err
	}
	var usage struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(a.body, &usage); err != nil {
		return a.problem()
	}
	columns := []string{"start"}
	if c.GroupBy != "" {
		columns = append(columns, strings.Split(c.GroupBy, ",")...)
	}
	return t.print(usage.Items, append(columns, "allowed", "denied", "shadow_denied", "degraded")...)
}

type auditCmd struct {
	Kind   string `help:"Only changes of this kind of object, such as rule or subject."`
	Target string `help:"Only changes of the object with this name."`
	Number int    `short:"n" default:"50" help:"Number of changes. Default: 50."`
}

// Run lists the newest rows of the audit trail.
func (c *auditCmd) Run(ctx context.Context, t *terminal) error {
	query := url.Values{}
	for name, value := range map[string]string{"kind": c.Kind, "target": c.Target} {
		if value != "" {
			query.Set(name, value)
		}
	}
	items, err := t.items(ctx, "/v1/audit", query, c.Number)
	if err != nil {
		return err
	}
	return t.print(items, "at", "actor.name", "action", "kind", "target", "reason")
}

type simulateCmd struct {
	File string `arg:"" help:"JSON of POST /v1/simulate: rules and requests or traffic; - for standard input."`
}

// Run prints the decisions. The exit code does not depend on them.
func (c *simulateCmd) Run(ctx context.Context, t *terminal) error {
	in := t.in
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	s, err := t.connect()
	if err != nil {
		return err
	}
	a, err := s.do(ctx, call{method: http.MethodPost, path: "/v1/simulate", body: body, contentType: "application/json"})
	if err != nil {
		return err
	}
	var answer struct {
		Decisions []json.RawMessage `json:"decisions"`
		Summary   struct {
			Requests, Allowed, Denied int64
		} `json:"summary"`
	}
	if err := json.Unmarshal(a.body, &answer); err != nil {
		return a.problem()
	}
	if t.output == "json" {
		return t.printJSON(json.RawMessage(a.body))
	}
	if err := t.print(answer.Decisions, "at_ms", "subject", "resource", "cost", "allowed", "rule", "limit", "remaining", "retry_after_ms"); err != nil {
		return err
	}
	if t.output == "table" {
		fmt.Fprintf(t.out, "%d requests: %d allowed, %d denied\n", answer.Summary.Requests, answer.Summary.Allowed, answer.Summary.Denied)
	}
	return nil
}
