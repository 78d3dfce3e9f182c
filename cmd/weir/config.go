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

const yamlType = "application/yaml"

type configPullCmd struct {
	File     string `arg:"" optional:"" default:"-" help:"Where to write it, as YAML, or as JSON if the name ends in .json. Default: standard output."`
	Subjects bool   `help:"Include the registered subjects, up to 10 000."`
}

// A configFile is a document to compare or to apply.
type configFile struct {
	File  string `arg:"" help:"The file, YAML or JSON; - for standard input."`
	Prune bool   `help:"Delete objects that the sections and lists of the file omit."`
}

type configDiffCmd struct{ configFile }

type configPushCmd struct {
	configFile
	Yes bool `short:"y" help:"Apply without asking."`
}

// A change is one change of a document.
type change struct {
	Action string `json:"action"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Text   string `json:"text"`
}

// Run writes the configuration.
func (c *configPullCmd) Run(ctx context.Context, t *terminal) error {
	s, err := t.connect()
	if err != nil {
		return err
	}
	format := "yaml"
	if strings.HasSuffix(c.File, ".json") || c.File == "-" && t.output == "json" {
		format = "json"
	}
	query := url.Values{"format": {format}}
	if c.Subjects {
		query.Set("subjects", "true")
	}
	a, err := s.do(ctx, call{method: http.MethodGet, path: "/v1/config", query: query})
	if err != nil {
		return err
	}
	if c.File == "-" {
		_, err = t.out.Write(a.body)
		return err
	}
	return os.WriteFile(c.File, a.body, 0o644)
}

// Run prints the changes.
func (c *configDiffCmd) Run(ctx context.Context, t *terminal) error {
	s, err := t.connect()
	if err != nil {
		return err
	}
	document, err := c.read(t)
	if err != nil {
		return err
	}
	changes, err := c.put(ctx, s, document, "", true)
	if err != nil {
		return err
	}
	if err := t.printChanges(changes); err != nil {
		return err
	}
	if len(changes) > 0 {
		return errNegative
	}
	return nil
}

// Run prints the changes and applies them.
func (c *configPushCmd) Run(ctx context.Context, t *terminal) error {
	s, err := t.connect()
	if err != nil {
		return err
	}
	if c.File == "-" && !c.Yes {
		return fmt.Errorf("standard input cannot be both the file and the confirmation: add --yes, or name a file")
	}
	document, err := c.read(t)
	if err != nil {
		return err
	}
	// Read the version before the comparison, so that a later change refuses the push.
	now, err := s.do(ctx, call{method: http.MethodGet, path: "/v1/config"})
	if err != nil {
		return err
	}
	changes, err := c.put(ctx, s, document, "", true)
	if err != nil {
		return err
	}
	if err := t.printChanges(changes); err != nil || len(changes) == 0 {
		return err
	}
	if !c.Yes {
		fmt.Fprintf(t.err, "Apply %s to %s? [y/N] ", counted(len(changes)), s.URL)
		reply, err := t.readLine()
		if err != nil {
			return err
		}
		if reply != "y" && reply != "yes" {
			return fmt.Errorf("nothing changed: the changes were not confirmed")
		}
	}
	if _, err = c.put(ctx, s, document, now.header.Get("ETag"), false); err == nil {
		fmt.Fprintf(t.err, "Applied %s to %s\n", counted(len(changes)), s.URL)
	}
	return err
}

func counted(changes int) string {
	if changes == 1 {
		return "1 change"
	}
	return fmt.Sprintf("%d changes", changes)
}

func (c *configFile) read(t *terminal) ([]byte, error) {
	if c.File == "-" {
		return io.ReadAll(t.in)
	}
	return os.ReadFile(c.File)
}

// put sends a document. A dry run changes nothing. JSON is valid YAML, so one content type is
// enough.
func (c *configFile) put(ctx context.Context, s *server, document []byte, ifMatch string, dryRun bool) ([]change, error) {
	query := url.Values{}
	if dryRun {
		query.Set("dry_run", "true")
	}
	if c.Prune {
		query.Set("prune", "true")
	}
	a, err := s.do(ctx, call{method: http.MethodPut, path: "/v1/config", query: query, body: document, contentType: yamlType, ifMatch: ifMatch})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Changes []change `json:"changes"`
	}
	if err := json.Unmarshal(a.body, &answer); err != nil {
		return nil, a.problem()
	}
	return answer.Changes, nil
}

func (t *terminal) printChanges(changes []change) error {
	if t.output == "table" && len(changes) == 0 {
		_, err := fmt.Fprintln(t.out, "no changes")
		return err
	}
	objects := make([]json.RawMessage, len(changes))
	for i := range changes {
		encoded, err := json.Marshal(changes[i])
		if err != nil {
			return err
		}
		objects[i] = encoded
	}
	return t.print(objects, "action", "kind", "name", "text")
}
