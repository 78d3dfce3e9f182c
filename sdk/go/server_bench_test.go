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
// client adds for the caller, and the server's CPU time relative to raw requests. At full speed the
// side that is faster sends more requests for each time that the server wakes up; "paced" sends
// both at the same rate. In the repository of Weir, make bench ARGS=clients runs it.
func BenchmarkServer(b *testing.B) {
	s := newServerBench(b)
	client := s.client()
	for _, c := range []struct {
		name string
		rate float64 // checks per second; 0: as fast as they are answered
	}{{"flat out", 0}, {"paced", 4000}} {
		b.Run(c.name, func(b *testing.B) {
			const callers, each = 16, 500
			raw := func() cost { return s.run(callers, each, c.rate, s.raw) }
			checks := func() cost { return s.run(callers, each, c.rate, s.check(client)) }
			viaRaw, viaClient := pairs(b, raw, checks)
			b.ReportMetric(median(viaRaw, cost.ofCaller), "raw-cpu-µs")
			b.ReportMetric(median(viaClient, cost.ofCaller), "client-cpu-µs")
			b.ReportMetric(medianOfPairs(viaRaw, viaClient, func(raw, client cost) float64 { return client.caller - raw.caller }), "added-cpu-µs")
			b.ReportMetric(medianOfPairs(viaRaw, viaClient, func(raw, client cost) float64 { return client.server / raw.server }), "server-cpu-ratio")
		})
		// The client sends the same bytes as raw. This measures what the server pays because
		// callers do other work on the same processors.
		b.Run(c.name+", raw requests of busier callers", func(b *testing.B) {
			const callers, each = 16, 500
			idle, busy := pairs(b,
				func() cost { return s.run(callers, each, c.rate, s.raw) },
				func() cost { return s.run(callers, each, c.rate, s.busy) })
			b.ReportMetric(medianOfPairs(idle, busy, func(idle, busy cost) float64 { return busy.caller - idle.caller }), "added-cpu-µs")
			b.ReportMetric(medianOfPairs(idle, busy, func(idle, busy cost) float64 { return busy.server / idle.server }), "server-cpu-ratio")
		})
	}
}

// BenchmarkBatching compares a client that batches with one that does not, in alternating runs: the
// median time of a check, and the server's CPU time. One caller alone must not wait longer.
func BenchmarkBatching(b *testing.B) {
	s := newServerBench(b)
	single, batching := s.client(), s.client(WithBatching())
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			each := 6400 / callers
			without, with := pairs(b,
				func() cost { return s.run(callers, each, 0, s.check(single)) },
				func() cost { return s.run(callers, each, 0, s.check(batching)) })
			p50 := func(c cost) float64 { return c.p50 }
			b.ReportMetric(median(without, p50), "single-p50-µs")
			b.ReportMetric(median(with, p50), "batching-p50-µs")
			b.ReportMetric(medianOfPairs(without, with, func(without, with cost) float64 { return with.p50 / without.p50 }), "p50-ratio")
			b.ReportMetric(medianOfPairs(without, with, func(without, with cost) float64 { return with.server / without.server }), "server-cpu-ratio")
			b.ReportMetric(medianOfPairs(without, with, func(without, with cost) float64 { return with.caller / without.caller }), "caller-cpu-ratio")
		})
	}
}

// A serverBench measures requests to a real server in another process.
type serverBench struct {
	b         *testing.B
	url, key  string
	pid       int
	transport *http.Transport
}

func newServerBench(b *testing.B) *serverBench {
	s := &serverBench{b: b, url: os.Getenv("WEIR_TEST_URL"), key: os.Getenv("WEIR_TEST_KEY")}
	pidFile := os.Getenv("WEIR_TEST_PIDFILE")
	if s.url == "" || pidFile == "" {
		b.Skip("run it with tests/withserver")
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		b.Fatal(err)
	}
	if s.pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		b.Fatal(err)
	}
	settings := defaults()
	s.transport = newTransport(&settings)
	b.Cleanup(s.transport.CloseIdleConnections)
	return s
}

func (s *serverBench) client(options ...Option) *Client {
	client, err := New(s.url, s.key, append(options, WithTimeout(patience), WithConnectTimeout(patience))...)
	if err != nil {
		s.b.Fatal(err)
	}
	s.b.Cleanup(client.Close)
	return client
}

func (s *serverBench) check(client *Client) func() error {
	return func() error {
		d, err := client.Check(context.Background(), benchCheck)
		if err == nil && d.NoDecision != nil {
			err = d.NoDecision
		}
		return err
	}
}

// raw sends the same request as the client, and ignores the answer.
func (s *serverBench) raw() error {
	r, err := http.NewRequest(http.MethodPost, s.url+"/v1/check", bytes.NewReader([]byte(`{"subject":"user_42","resource":"orders:create"}`)))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	r.Header["User-Agent"] = userAgent
	response, err := s.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err = io.Copy(io.Discard, response.Body); err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", response.StatusCode)
	}
	return err
}

// clientsWork is about the CPU time that the client adds to a raw request.
const clientsWork = 6 * time.Microsecond

// busy is a raw request, and as much other work as the client does for a check.
func (s *serverBench) busy() error {
	err := s.raw()
	for began := time.Now(); time.Since(began) < clientsWork; {
	}
	return err
}

// A cost has microseconds: the CPU time of a call for the caller and for the server, and the median
// time of a call.
type cost struct{ caller, server, p50 float64 }

func (c cost) ofCaller() float64 { return c.caller }

// run makes calls, at a rate per second in total; 0: as fast as they are answered.
func (s *serverBench) run(callers, each int, rate float64, call func() error) cost {
	ownBefore, otherBefore := cpu(), cpuOf(s.b, s.pid)
	begin := time.Now()
	times := make([][]float64, callers)
	var all sync.WaitGroup
	for caller := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range each {
				if rate > 0 {
					due := time.Duration(float64(i*callers+caller) / rate * float64(time.Second))
					time.Sleep(time.Until(begin.Add(due)))
				}
				start := time.Now()
				if err := call(); err != nil {
					s.b.Error(err)
					return
				}
				times[caller] = append(times[caller], float64(time.Since(start))/1000)
			}
		}()
	}
	all.Wait()
	n := float64(callers*each) * 1000
	return cost{float64(cpu()-ownBefore) / n, float64(cpuOf(s.b, s.pid)-otherBefore) / n, middle(slices.Concat(times...))}
}

// pairs runs two measurements in turns, after one run of each that does not count.
func pairs(b *testing.B, first, second func() cost) (firsts, seconds []cost) {
	first()
	second()
	b.ResetTimer()
	for i := range b.N {
		if i%2 == 0 {
			firsts = append(firsts, first())
			seconds = append(seconds, second())
		} else {
			seconds = append(seconds, second())
			firsts = append(firsts, first())
		}
	}
	return firsts, seconds
}

func median(costs []cost, of func(cost) float64) float64 {
	return medianOfPairs(costs, costs, func(c, _ cost) float64 { return of(c) })
}

func medianOfPairs(firsts, seconds []cost, of func(first, second cost) float64) float64 {
	var values []float64
	for i := range firsts {
		values = append(values, of(firsts[i], seconds[i]))
	}
	return middle(values)
}

func middle(values []float64) float64 {
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
