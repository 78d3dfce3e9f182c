//go:build server

package weir

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkServer compares checks of the client with raw requests to the same, real server: the CPU
// time of 16 callers, and that of the server's process. Each run of one is followed by a run of the
// other, so that both meet the same machine. The metrics are medians over all pairs: what the
// client adds for the caller, and the server's CPU time relative to raw requests. In the repository
// of Weir, make bench ARGS=clients runs it.
func BenchmarkServer(b *testing.B) {
	url, key, pidFile := os.Getenv("WEIR_TEST_URL"), os.Getenv("WEIR_TEST_KEY"), os.Getenv("WEIR_TEST_PIDFILE")
	if url == "" || pidFile == "" {
		b.Skip("run it with tests/withserver")
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		b.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		b.Fatal(err)
	}
	client, err := New(url, key, WithTimeout(patience), WithConnectTimeout(patience))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	s := defaults()
	transport := newTransport(&s)
	defer transport.CloseIdleConnections()
	check := func() error {
		d, err := client.Check(context.Background(), benchCheck)
		if err == nil && d.NoDecision != nil {
			err = d.NoDecision
		}
		return err
	}
	raw := func() error {
		r, err := http.NewRequest(http.MethodPost, url+"/v1/check", bytes.NewReader([]byte(`{"subject":"user_42","resource":"orders:create"}`)))
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err = io.Copy(io.Discard, response.Body); err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", response.StatusCode)
		}
		return err
	}
	const callers, each = 16, 500
	run := func(call func() error) (caller, server float64) {
		ownBefore, otherBefore := cpu(), cpuOf(b, pid)
		var all sync.WaitGroup
		for range callers {
			all.Add(1)
			go func() {
				defer all.Done()
				for range each {
					if err := call(); err != nil {
						b.Error(err)
						return
					}
				}
			}()
		}
		all.Wait()
		return float64(cpu()-ownBefore) / (callers * each) / 1000, float64(cpuOf(b, pid)-otherBefore) / (callers * each) / 1000
	}
	run(raw)
	run(check)
	var viaClient, viaRaw, added, relative []float64
	b.ResetTimer()
	for i := range b.N {
		first, second := raw, check
		if i%2 == 1 {
			first, second = check, raw
		}
		c1, s1 := run(first)
		c2, s2 := run(second)
		if i%2 == 1 {
			c1, s1, c2, s2 = c2, s2, c1, s1
		}
		viaRaw, viaClient = append(viaRaw, c1), append(viaClient, c2)
		added, relative = append(added, c2-c1), append(relative, s2/s1)
	}
	b.ReportMetric(median(viaRaw), "raw-cpu-µs")
	b.ReportMetric(median(viaClient), "client-cpu-µs")
	b.ReportMetric(median(added), "added-cpu-µs")
	b.ReportMetric(median(relative), "server-cpu-ratio")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// cpuOf returns the CPU time of a process in nanoseconds, in steps of 10 ms.
func cpuOf(b *testing.B, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	ticks := int64(0)
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return ticks * int64(10*time.Millisecond)
}
