package load

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pair returns both ends of a connection.
func pair(t *testing.T, end time.Time) (near net.Conn, far *socket) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	near, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = near.Close() })
	accepted, err := l.Accept()
	require.NoError(t, err)
	far, err = newSocket(accepted, end)
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() })
	require.NoError(t, awaitStamps(t.Context()))
	return near, far
}

// The stamp is of the arrival, which on loopback is during the write, and of the same clock.
func TestStampIsOfTheArrival(t *testing.T) {
	near, far := pair(t, time.Now().Add(time.Minute))
	b := make([]byte, 10)
	var before, after int64
	write := func(text string) {
		before = realtime()
		_, err := io.WriteString(near, text)
		require.NoError(t, err)
		after = realtime()
	}
	for range 20 {
		write("one")
		write("two")
		n, err := io.ReadFull(far, b[:6])
		require.NoError(t, err)
		require.Equal(t, "onetwo", string(b[:n]))
		require.GreaterOrEqual(t, far.arrived, before, "of the last packet that was read")
		require.LessOrEqual(t, far.arrived, after)
	}
}

func TestWaitsOfSocketsEnd(t *testing.T) {
	_, far := pair(t, time.Now())
	_, err := far.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	near, far := pair(t, time.Now().Add(time.Minute))
	go func() { _ = near.Close() }()
	_, err = far.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)

	_, far = pair(t, time.Now().Add(time.Minute))
	go far.shutdown()
	_, err = far.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}

// A large request does not fit into the buffers of the kernel.
func TestSocketsWriteAll(t *testing.T) {
	near, far := pair(t, time.Now().Add(time.Minute))
	const size = 16 << 20
	read := make(chan int64)
	go func() {
		n, _ := io.CopyN(io.Discard, near, size)
		read <- n
	}()
	n, err := far.Write(make([]byte, size))
	require.NoError(t, err)
	require.Equal(t, size, n)
	require.EqualValues(t, size, <-read)
}

// Garbage would make the driver late.
func TestSocketReadsDoNotAllocate(t *testing.T) {
	near, far := pair(t, time.Now().Add(time.Minute))
	b := []byte{1}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = near.Write(b)
		_, _ = far.Read(b)
	}))
}

func TestReplayIsTheScheduleOfADriverThatIsNeverLate(t *testing.T) {
	const ms = time.Millisecond
	s := schedule{start: time.Unix(1_800_000_000, 0), rate: 1000}
	for name, c := range map[string]struct {
		connections int
		took, want  []time.Duration
	}{
		"free connections":           {2, []time.Duration{1 * ms, 1 * ms, 1 * ms}, []time.Duration{1 * ms, 1 * ms, 1 * ms}},
		"stall of one connection":    {1, []time.Duration{5 * ms, 1 * ms, 1 * ms, 1 * ms}, []time.Duration{5 * ms, 5 * ms, 5 * ms, 5 * ms}},
		"stall of all connections":   {2, []time.Duration{5 * ms, 4 * ms, 1 * ms, 1 * ms}, []time.Duration{5 * ms, 4 * ms, 4 * ms, 3 * ms}},
		"the first that is free":     {2, []time.Duration{9 * ms, 1 * ms, 1 * ms, 1 * ms}, []time.Duration{9 * ms, 1 * ms, 1 * ms, 1 * ms}},
		"one was not sent":           {1, []time.Duration{2 * ms, 0, 1 * ms}, []time.Duration{2 * ms, -1, 1 * ms}},
		"more than a connection can": {1, []time.Duration{2 * ms, 2 * ms, 2 * ms}, []time.Duration{2 * ms, 3 * ms, 4 * ms}},
	} {
		got := make([]time.Duration, len(c.took))
		for i := range got {
			got[i] = -1
		}
		replay(s, c.took, c.connections, func(i int64, latency time.Duration) { got[i] = latency })
		require.Equal(t, c.want, got, name)
	}
}

// lateReader reads some time after it was asked to.
type lateReader struct {
	io.Reader
	late time.Duration
}

func (r lateReader) Read(b []byte) (int, error) {
	<-time.After(r.late)
	return r.Reader.Read(b)
}

// The driver is too slow for its rate on its only connection, and the server is not. So requests
// wait longer and longer for the driver, but none of it is in Served.
func TestServedIsWithoutTheLatenessOfTheDriver(t *testing.T) {
	const server, driver = 2 * time.Millisecond, 25 * time.Millisecond
	for name, slow := range map[string]func(*openLoop){
		"receives late": func(o *openLoop) {
			o.dial = func(ctx context.Context, target Target, connection int, end time.Time) (*http1, error) {
				c, err := dial(ctx, target, connection, end)
				if err == nil {
					c.in = bufio.NewReader(lateReader{c.Conn, driver})
				}
				return c, err
			}
		},
		"sends late": func(o *openLoop) {
			next := o.next
			o.next = func() *Request {
				<-time.After(driver)
				return next()
			}
		},
	} {
		for protocol, target := range serve(t, func(http.ResponseWriter, *http.Request) { <-time.After(server) }) {
			if protocol == HTTP2 {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				o := newOpenLoop(NewTraffic(oneRequest(), Uniform, 1), 100, Plan{
					Connections: 1, Measure: 200 * time.Millisecond, Begin: func() {}, End: func() {},
				})
				slow(o)
				r, err := o.run(t.Context(), target)
				require.NoError(t, err)
				require.EqualValues(t, 20, r.Requests)
				require.Zero(t, r.Unstamped)
				require.GreaterOrEqual(t, r.Latency(90), 10*driver, "due every 10 ms, and sent every 25 ms")
				require.GreaterOrEqual(t, r.Served(1), server)
				require.Less(t, r.Served(50), driver/2)
			})
		}
	}
}
