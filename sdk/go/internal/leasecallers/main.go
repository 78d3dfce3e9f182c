// Leasecallers is a process with a client that leases units. Tests start several of them and record
// what they allow.
//
//	leasecallers URL KEY SUBJECT RESOURCES CALLERS SKEW
//
// As many callers check each of the resources, which are separated by commas. The clock of the
// client is ahead by the duration SKEW, as if the clocks of machines were apart.
//
// For each decision it writes a record of 18 bytes to its standard output: l if it was allowed from
// a lease, s if the server allowed it, d if it was denied; the number of the resource; and the
// microseconds since 1970 before and after the check, by the machine's own clock, little-endian.
// The record is written by the caller before its next check, so it is not lost if the process is
// killed. The process ends when its standard input does, and returns its units before.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	weir "github.com/weir-dev/weir-go"
	"github.com/weir-dev/weir-go/internal/skew"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 6 {
		return fmt.Errorf("6 arguments are required, not %d", len(args))
	}
	callers, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	if skew.Clock, err = time.ParseDuration(args[5]); err != nil {
		return err
	}
	client, err := weir.New(args[0], args[1], weir.WithLeases(), weir.WithOnFailure(weir.Deny), weir.WithTimeout(5*time.Second))
	if err != nil {
		return err
	}
	resources := strings.Split(args[3], ",")
	var ended atomic.Bool
	failed := make(chan error, callers*len(resources))
	var all sync.WaitGroup
	for i, resource := range resources {
		for range callers {
			all.Add(1)
			go func() {
				defer all.Done()
				for !ended.Load() {
					if err := once(client, weir.Check{Subject: args[2], Resource: resource}, byte(i)); err != nil {
						failed <- err
						return
					}
				}
			}()
		}
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

// pause is how long a caller waits after a check that was not allowed.
const pause = 2 * time.Millisecond

// once checks once, and pauses if the check was not allowed.
func once(client *weir.Client, check weir.Check, resource byte) error {
	before := time.Now()
	d, err := client.Check(context.Background(), check)
	after := time.Now()
	if err != nil {
		return err
	}
	record := make([]byte, 2, 18)
	record[1] = resource
	switch {
	case d.NoDecision != nil:
		time.Sleep(pause)
		return nil
	case !d.Allowed:
		record[0] = 'd'
		defer time.Sleep(pause)
	case d.Source == weir.SourceLease:
		record[0] = 'l'
	default:
		record[0] = 's'
	}
	record = binary.LittleEndian.AppendUint64(record, uint64(before.UnixMicro())) // after 1970
	record = binary.LittleEndian.AppendUint64(record, uint64(after.UnixMicro()))
	_, err = os.Stdout.Write(record)
	return err
}
