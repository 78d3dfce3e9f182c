// Command conformance runs files of test vectors against both engines, and files of bounds against
// the calendar windows and against decisions by rules with these windows, in both engines:
//
//	go run ./internal/engine/enginetest/conformance -redis URL DIR
//
// It reads every .json file under DIR and prints each difference and the counts of each file and
// engine. The last line is "N passed, M failed" (cases and rows of both engines, and rows of bounds
// alone). The exit code is 1 if something failed or if there was nothing to run.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
	_ "time/tzdata" // the rows of bounds must not depend on the machine's zones

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	redisengine "weir/internal/engine/redis"
)

func main() {
	redisURL := flag.String("redis", "", "address of a Redis for the keys of the run, such as redis://127.0.0.1:6379/0")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: conformance -redis URL DIR")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || *redisURL == "" {
		flag.Usage()
		os.Exit(2)
	}
	ok, err := run(context.Background(), os.Stdout, *redisURL, flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if !ok {
		os.Exit(1)
	}
}

type eng struct {
	name   string
	engine engine.Engine
	tally
}

// patience is the timeout of a case. It is long, because the command tests answers and not speed.
const patience = 10 * time.Second

func run(ctx context.Context, out io.Writer, redisURL, dir string) (ok bool, err error) {
	client, err := redisengine.NewClient(redisURL)
	if err != nil {
		return false, err
	}
	defer func() { _ = client.Close() }()
	engines := []*eng{
		{name: "memory", engine: engine.NewMemory(engine.MemoryOptions{})},
		{name: "redis", engine: redisengine.New(client, redisengine.Options{Deadline: patience})},
	}
	files := os.DirFS(dir)
	names, err := enginetest.FileNames(files)
	if err != nil {
		return false, fmt.Errorf("find vector files in %s: %w", dir, err)
	}
	unread := 0
	var calendar tally
	for _, name := range names {
		file, err := enginetest.ReadFile(files, name)
		if err != nil {
			fmt.Fprintln(out, err)
			unread++
			continue
		}
		if len(file.Cases) > 0 {
			for _, e := range engines {
				e.file(ctx, out, name, file.Cases)
			}
		}
		if len(file.Bounds) > 0 {
			calendar.add(bounds(out, name, file.Bounds))
			for _, e := range engines {
				e.bounds(out, name, file.Bounds)
			}
		}
	}
	all := tally{failed: unread}
	for _, e := range engines {
		fmt.Fprintf(out, "%s: %s\n", e.name, e.tally)
		all.add(e.tally)
	}
	if calendar != (tally{}) {
		fmt.Fprintf(out, "bounds: %s\n", calendar)
		all.add(calendar)
	}
	fmt.Fprintln(out, all)
	return all.failed == 0 && all.passed > 0, nil
}

// file runs cases against one engine.
func (e *eng) file(ctx context.Context, out io.Writer, name string, cases []enginetest.Case) {
	var sum tally
	for _, c := range cases {
		sum.count(out, name+": "+e.name, enginetest.RunCase(ctx, e.engine, enginetest.Prefix(), c))
	}
	fmt.Fprintf(out, "%s: %s: %s\n", name, e.name, sum)
	e.add(sum)
}

// bounds decides rows of calendar windows as checks by rules with these windows.
func (e *eng) bounds(out io.Writer, name string, rows []enginetest.Bounds) {
	var sum tally
	r := newServer(e.engine)
	for _, row := range rows {
		sum.count(out, name+": "+e.name, r.run(row))
	}
	fmt.Fprintf(out, "%s: %s: %s\n", name, e.name, sum)
	e.add(sum)
}

// bounds computes rows of calendar windows.
func bounds(out io.Writer, name string, rows []enginetest.Bounds) tally {
	var sum tally
	for i, row := range rows {
		sum.count(out, name+": bounds", enginetest.RunBounds(i, row))
	}
	fmt.Fprintf(out, "%s: bounds: %s\n", name, sum)
	return sum
}

// A tally counts cases or rows.
type tally struct{ passed, failed int }

func (t tally) String() string { return fmt.Sprintf("%d passed, %d failed", t.passed, t.failed) }

func (t *tally) add(other tally) {
	t.passed += other.passed
	t.failed += other.failed
}

// count prints the failures of one case or row, and counts it.
func (t *tally) count(out io.Writer, where string, failures []enginetest.Failure) {
	for _, f := range failures {
		fmt.Fprintf(out, "%s: %s\n", where, f)
	}
	if len(failures) > 0 {
		t.failed++
		return
	}
	t.passed++
}
