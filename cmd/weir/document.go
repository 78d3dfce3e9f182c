package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"weir/internal/check"
	"weir/internal/limit"
)

// A document has the parts of a configuration document that decide checks.
type document struct {
	Rules []map[string]json.RawMessage `json:"rules"`
	Plans []struct {
		Slug    string                   `json:"slug"`
		Default bool                     `json:"default"`
		Limits  map[string]documentLimit `json:"limits"`
	} `json:"plans"`
	Subjects []struct {
		Subject   string                   `json:"subject"`
		Plan      string                   `json:"plan"`
		State     string                   `json:"state"`
		Overrides map[string]documentLimit `json:"overrides"`
	} `json:"subjects"`
}

type documentLimit struct {
	Limit     int64 `json:"limit"`
	Burst     int64 `json:"burst"`
	Unlimited bool  `json:"unlimited"`
}

func (l documentLimit) limit() limit.Limit {
	return limit.Limit{Limit: l.Limit, Burst: l.Burst, Unlimited: l.Unlimited}
}

// parseDocument reads a configuration document in YAML or JSON.
func parseDocument(content []byte) (*document, error) {
	var tree any
	if err := yaml.Unmarshal(content, &tree); err != nil { // JSON is YAML, too
		return nil, err
	}
	encoded, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	var d document
	if err := json.Unmarshal(encoded, &d); err != nil {
		return nil, err
	}
	if len(d.Rules) == 0 {
		return nil, errors.New("the configuration has no rules")
	}
	return &d, nil
}

// policy returns the rules, plans and subjects of the document. Overrides are in force at all
// times.
func (d *document) policy() (p check.PolicyData, subjects []check.SubjectData, err error) {
	for i, fields := range d.Rules {
		r, err := documentRule(fields)
		if err != nil {
			return p, nil, fmt.Errorf("rules.%d.%w", i, err)
		}
		p.Rules = append(p.Rules, r)
	}
	for _, in := range d.Plans {
		plan := check.PlanData{Slug: in.Slug, Default: in.Default, Limits: map[string]limit.Limit{}}
		for rule, l := range in.Limits {
			plan.Limits[rule] = l.limit()
		}
		p.Plans = append(p.Plans, plan)
	}
	for i, in := range d.Subjects {
		s := check.SubjectData{Subject: in.Subject, Plan: in.Plan}
		if in.State != "" {
			if s.State, err = check.ParseSubjectState(in.State); err != nil {
				return p, nil, fmt.Errorf("subjects.%d.state %w", i, err)
			}
		}
		for rule, l := range in.Overrides {
			s.Overrides = append(s.Overrides, check.OverrideData{Rule: rule, Limit: l.limit()})
		}
		subjects = append(subjects, s)
	}
	return p, subjects, nil
}

func documentRule(fields map[string]json.RawMessage) (limit.Rule, error) {
	var slug string
	if err := json.Unmarshal(fields["slug"], &slug); err != nil {
		return limit.Rule{}, errors.New("slug must be a string")
	}
	r := limit.NewRule(slug)
	for i := range limit.Fields {
		f := &limit.Fields[i]
		raw, given := fields[f.Name]
		if !given || f.Fixed {
			continue
		}
		if err := f.SetJSON(&r, raw); err != nil {
			return r, fmt.Errorf("%s %w", f.Name, err)
		}
	}
	return r, nil
}
