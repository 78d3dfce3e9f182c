// Command conformance runs files of test vectors against both engines:
//
//	go run ./internal/engine/enginetest/conformance -redis URL DIR
//
// It takes every .json file under DIR, prints each difference, the counts of each file and
// engine, and as its last line "N passed, M failed" (cases, both engines together). It exits
// with 1 if a case failed or there was none.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

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
	name           string
	engine         engine.Engine
	passed, failed int
}

// patience is how long a case may take: the run is about answers, not about speed.
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
		return false, fmt.Errorf("look for vector files in %s: %w", dir, err)
	}
	unread := 0
	for _, name := range names {
		file, err := enginetest.ReadFile(files, name)
		if err != nil {
			fmt.Fprintln(out, err)
			unread++
			continue
		}
		for _, e := range engines {
			e.file(ctx, out, name, file)
		}
	}
	passed, failed := 0, unread
	for _, e := range engines {
		fmt.Fprintf(out, "%s: %d passed, %d failed\n", e.name, e.passed, e.failed)
		passed += e.passed
		failed += e.failed
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failed)
	return failed == 0 && passed > 0, nil
}

func (e *eng) file(ctx context.Context, out io.Writer, name string, file enginetest.File) {
	passed, failed := 0, 0
	for _, c := range file.Cases {
		failures := enginetest.RunCase(ctx, e.engine, enginetest.Prefix(), c)
		for _, f := range failures {
			fmt.Fprintf(out, "%s: %s: %s\n", name, e.name, f)
		}
		if len(failures) == 0 {
			passed++
		} else {
			failed++
		}
	}
	fmt.Fprintf(out, "%s: %s: %d passed, %d failed\n", name, e.name, passed, failed)
	e.passed += passed
	e.failed += failed
}
