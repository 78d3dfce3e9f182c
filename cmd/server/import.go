package main

import (
	"fmt"
	"os"

	"weir/internal/importer"
)

// importCommand converts the configuration of another rate limiter into a configuration document.
type importCommand struct {
	EnvoyRatelimit importEnvoyCommand `cmd:"" name:"envoy-ratelimit" help:"Convert a file of envoyproxy/ratelimit into a document for PUT /v1/config."`
}

type importEnvoyCommand struct {
	File string `arg:"" type:"existingfile" help:"YAML of one domain."`
}

// Run prints the document to standard output, and the report to standard error.
func (c importEnvoyCommand) Run() error {
	data, err := os.ReadFile(c.File)
	if err != nil {
		return err
	}
	document, notes, err := importer.EnvoyRateLimit(data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	text, err := document.YAML()
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(text); err != nil {
		return err
	}
	route := document.Routes[0]
	fmt.Fprintf(os.Stderr, "%d rules, and the route %s with %d templates\n", len(document.Rules), route.Slug, len(route.Resources))
	for _, note := range notes {
		fmt.Fprintln(os.Stderr, note)
	}
	return nil
}
