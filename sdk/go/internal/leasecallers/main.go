// Leasecallers is a process with a client that leases units. Tests start several of them and count
// what they allow.
//
//	leasecallers URL KEY SUBJECT RESOURCE CALLERS
//
// For each allowed check it writes one byte to its standard output: l if it was decided from a
// lease, s if the server decided. The byte is written by the caller before its next check, so it is
// not lost if the process is killed. The process ends when its standard input does, and returns its
// units before.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	weir "github.com/weir-dev/weir-go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("5 arguments are required, not %d", len(args))
	}
	callers, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	client, err := weir.New(args[0], args[1], weir.WithLeases(), weir.WithOnFailure(weir.Deny), weir.WithTimeout(5*time.Second))
	if err != nil {
		return err
	}
	check := weir.Check{Subject: args[2], Resource: args[3]}
	var ended atomic.Bool
	failed := make(chan error, callers)
	var all sync.WaitGroup
	for range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for !ended.Load() {
				if err := once(client, check); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	ended.Store(true)
	all.Wait()
	client.Close()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

var leased, sent = []byte{'l'}, []byte{'s'}

// once checks once, and pauses after a denial.
func once(client *weir.Client, check weir.Check) error {
	d, err := client.Check(context.Background(), check)
	switch {
	case err != nil:
		return err
	case !d.Allowed:
		time.Sleep(time.Millisecond)
		return nil
	case d.Source == weir.SourceLease:
		_, err = os.Stdout.Write(leased)
	default:
		_, err = os.Stdout.Write(sent)
	}
	return err
}
