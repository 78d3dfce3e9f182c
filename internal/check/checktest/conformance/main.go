// Command conformance runs files of test vectors against both engines:
//
//	go run ./internal/check/checktest/conformance -redis URL DIR
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

	"weir/internal/check"
	"weir/internal/check/checktest"
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

type engine struct {
	name           string
	engine         check.Engine
	passed, failed int
}

// patience is how long a case may take: the run is about answers, not about speed.
const patience = 10 * time.Second

func run(ctx context.Context, out io.Writer, redisURL, dir string) (ok bool, err error) {
	client, err := check.NewRedisClient(redisURL)
	if err != nil {
		return false, err
	}
	defer func() { _ = client.Close() }()
	engines := []*engine{
		{name: "memory", engine: check.NewMemoryEngine(check.MemoryOptions{})},
		{name: "redis", engine: check.NewRedisEngine(client, check.RedisOptions{Deadline: patience})},
	}
	files := os.DirFS(dir)
	names, err := checktest.FileNames(files)
	if err != nil {
		return false, fmt.Errorf("look for vector files in %s: %w", dir, err)
	}
	unread := 0
	for _, name := range names {
		file, err := checktest.ReadFile(files, name)
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

func (e *engine) file(ctx context.Context, out io.Writer, name string, file checktest.File) {
	passed, failed := 0, 0
	for _, c := range file.Cases {
		failures := checktest.RunCase(ctx, e.engine, checktest.Prefix(), c)
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
