package main

import (
	"fmt"
	"os"
	"path/filepath"

	"weir/bench/simulate"
)

// simulateOptions are the options of the model of several machines.
type simulateOptions struct {
	wanted, fit bool
	seed        uint64
}

// simulateScaling prints the tables of docs/scaling.md, and writes them to the page with -write.
func simulateScaling(o options) error {
	in := simulate.Inputs{Costs: simulate.Measured(), Seed: o.simulate.seed}
	if o.simulate.fit {
		simulate.Fit(os.Stdout, in)
		return nil
	}
	tables := simulate.Tables(in)
	for _, t := range tables {
		fmt.Printf("\n%s:\n\n%s", t.Name, t.Text)
	}
	if !o.write {
		return nil
	}
	root, err := checkout()
	if err != nil {
		return err
	}
	file := filepath.Join(root, "docs", "scaling.md")
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	written, err := simulate.Replace(string(page), tables)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(written), 0o644)
}
