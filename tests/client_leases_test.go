package tests

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// leaseClients are processes with a client that leases units, and what they allowed.
type leaseClients struct {
	t               *testing.T
	program         string
	key             string
	resources       []string
	allowed, leased atomic.Int64

	mu          sync.Mutex
	granted     []grantedCheck
	firstDenied int64 // when the first check was denied, in microseconds since 1970; 0: none was
}

// grantedCheck is a check that a client allowed at some instant from one to the other, by the clock
// of this machine.
type grantedCheck struct {
	resource int
	leased   bool
	from, to int64 // microseconds since 1970
}

// leaseRecord is the number of bytes of a record of leasecallers.
const leaseRecord = 18

// leaseProcess is one of them.
type leaseProcess struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	read   chan struct{} // closed when its whole output was recorded
}

func newLeaseClients(t *testing.T, key string, resources ...string) *leaseClients {
	t.Helper()
	return &leaseClients{t: t, key: key, resources: resources, program: harness.Program(t, "sdk/go", "./internal/leasecallers")}
}

// start starts a process with 16 callers for each resource, whose clock is ahead by skew.
func (c *leaseClients) start(url, subject string, skew time.Duration) *leaseProcess {
	c.t.Helper()
	p := &leaseProcess{
		cmd:  exec.Command(c.program, url, c.key, subject, strings.Join(c.resources, ","), "16", skew.String()),
		read: make(chan struct{}),
	}
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	require.NoError(c.t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(c.t, err)
	p.stdin = stdin
	require.NoError(c.t, p.cmd.Start())
	go func() {
		defer close(p.read)
		in, record := bufio.NewReader(stdout), make([]byte, leaseRecord)
		for {
			if _, err := io.ReadFull(in, record); err != nil {
				return
			}
			c.add(record)
		}
	}()
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.read
	})
	return p
}

// add records a check that a process decided.
func (c *leaseClients) add(record []byte) {
	g := grantedCheck{
		leased: record[0] == 'l', resource: int(record[1]),
		from: int64(binary.LittleEndian.Uint64(record[2:])), to: int64(binary.LittleEndian.Uint64(record[10:])),
	}
	c.mu.Lock()
	if record[0] == 'd' {
		if c.firstDenied == 0 || g.to < c.firstDenied {
			c.firstDenied = g.to
		}
		c.mu.Unlock()
		return
	}
	c.granted = append(c.granted, g)
	c.mu.Unlock()
	c.allowed.Add(1)
	if g.leased {
		c.leased.Add(1)
	}
}

// kill ends the process without any chance to return units.
func (p *leaseProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.read
	_ = p.cmd.Wait()
}

// stop ends the process, which returns its units.
func (p *leaseProcess) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.stdin.Close())
	<-p.read
	require.NoError(t, p.cmd.Wait(), p.stderr.String())
}

// until returns when the clients have allowed n checks.
func (c *leaseClients) until(n int64) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.allowed.Load() >= n }, patience, tick/10, "%d of %d", c.allowed.Load(), n)
}

// Processes decide checks of one subject from leases, while a client is killed, connections are
// cut, and a server is killed. All of them together never allow one unit more than the limit.
func TestClientLeases(t *testing.T) {
	const limit = 200_000
	s := newSettings(t)
	servers := []*instance{start(t, s).AwaitReady(), start(t, s).AwaitReady()}
	tenant := newTenant(t, s, servers[0])
	tenant.putRule("leased", fmt.Sprintf(`{"resource":"leased","algorithm":"fixed_window","limit":%d,"window":%q,"on_unavailable":"deny","consistency":"leased"}`,
		limit, harness.QuietWindow(time.Now(), 360, 3)), servers...)
	doors := make([]*door, len(servers))
	for i := range doors {
		doors[i] = newDoor(t, servers[i].Address("WEIR_HTTP_ADDR"))
		doors[i].open()
	}
	clients := newLeaseClients(t, tenant.key, "leased")
	processes := make([]*leaseProcess, 4)
	for i := range processes {
		processes[i] = clients.start("http://"+doors[i%2].addr, "s", 0)
	}

	clients.until(limit / 10)
	processes[0].kill()
	processes[0] = clients.start("http://"+doors[1].addr, "s", 0)
	clients.until(limit / 5)
	doors[0].close()
	clients.until(limit * 3 / 10) // by the other clients
	doors[0].open()
	clients.until(limit * 4 / 10)
	servers[0].Kill()
	doors[0].close()
	servers[0] = start(t, s).AwaitReady()
	doors[0].leadTo(servers[0].Address("WEIR_HTTP_ADDR"))
	doors[0].open()
	clients.until(limit / 2)
	for _, p := range processes {
		p.stop(t)
	}
	require.Positive(t, clients.leased.Load())
	// On a machine with nothing else to do it is almost every check.
	require.Greater(t, clients.leased.Load(), clients.allowed.Load()/10, "many checks were decided by clients")

	// Everything that was allowed is charged. What is charged in addition was lost. Instances that
	// stop return what they held themselves.
	for i := range servers {
		require.Zero(t, servers[i].Stop())
		servers[i] = start(t, s).AwaitReady()
	}
	allowed := clients.allowed.Load()
	remaining := remainingOf(t, tenant, servers[1], "s")
	require.LessOrEqual(t, allowed, limit-remaining, "a check was allowed and not charged")
	t.Logf("%d checks by 4 processes, %d of them from leases; %d of %d units lost by a killed client, a killed server and a cut",
		allowed, clients.leased.Load(), limit-remaining-allowed, limit)

	// With several new processes, the rest is used up, to the last unit.
	for i := range processes {
		processes[i] = clients.start(servers[i%2].URL(), "s", 0)
	}
	require.Eventually(t, func() bool { return remainingOf(t, tenant, servers[1], "s") == 0 }, patience, tick)
	for _, p := range processes {
		p.stop(t)
	}
	require.LessOrEqual(t, clients.allowed.Load(), allowed+remaining)
	require.Eventually(t, func() bool { // instances return what they hold
		return clients.allowed.Load()+remainingOf(t, tenant, servers[1], "s") == allowed+remaining
	}, patience, tick, "without faults, nothing is lost and nothing is added")
}

// Processes use up a limit as fast as they can. The first check is denied when the server has no
// units left, while other processes still hold some. They are a small part of the limit, because
// leases become smaller as less remains.
func TestClientLeasesDenyEarly(t *testing.T) {
	const limit = 100_000
	s := newSettings(t)
	server := start(t, s).AwaitReady()
	tenant := newTenant(t, s, server)
	tenant.putRule("leased", fmt.Sprintf(`{"resource":"leased","algorithm":"fixed_window","limit":%d,"window":%q,"consistency":"leased"}`,
		limit, harness.QuietWindow(time.Now(), 360, 3)), server)
	clients := newLeaseClients(t, tenant.key, "leased")
	processes := make([]*leaseProcess, 4)
	for i := range processes {
		processes[i] = clients.start(server.URL(), "s", 0)
	}
	require.Eventually(t, func() bool { return remainingOf(t, tenant, server, "s") == 0 }, patience, tick)
	for _, p := range processes {
		p.stop(t)
	}
	require.Positive(t, clients.firstDenied, "no check was denied")
	early := clients.afterTheFirstDenial()
	require.Less(t, early, limit/4)
	t.Logf("the first check was denied when others held %d of %d units", early, limit)
}

// afterTheFirstDenial returns how many checks were allowed after the first one was denied.
func (c *leaseClients) afterTheFirstDenial() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.granted {
		if g.from > c.firstDenied {
			n++
		}
	}
	return n
}

// remainingOf returns what the server says remains.
func remainingOf(t *testing.T, tenant *client, i *instance, subject string) int64 {
	t.Helper()
	got, d, err := tenant.check(i.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"leased","cost":0}`, subject))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, got.status)
	require.False(t, d.Degraded)
	require.NotNil(t, d.Remaining)
	return *d.Remaining
}
