package api

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
)

// readAll reads text through a handedConn, in pieces of one byte or as it comes.
func readAll(t *testing.T, text string, single bool) (read string, poisoned bool) {
	t.Helper()
	var f framing
	r := strings.NewReader(text)
	source := r.Read
	if single {
		source = iotest.OneByteReader(r).Read
	}
	buf := make([]byte, 4096)
	var all strings.Builder
	for {
		n, err := source(buf)
		n = f.follow(buf[:n])
		all.Write(buf[:n])
		if err != nil || f.poison.Load() != nil {
			return all.String(), f.poison.Load() != nil
		}
	}
}

// A request with two lengths is found wherever it begins, and what a body contains is no request.
func TestFraming(t *testing.T) {
	const (
		host   = "Host: weir\r\n"
		plain  = "GET /healthz HTTP/1.1\r\n" + host + "\r\n"
		length = "POST /v1/check HTTP/1.1\r\n" + host + "Content-Length: 11\r\n\r\nhello\r\n\r\nab"
		chunks = "POST /v1/check HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\nA\r\n0123456\r\n9\r\n0\r\nX: y\r\n\r\n"
		bare   = "GET / HTTP/1.1\nHost: weir\n\n"
		both   = "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"
		old    = " HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n"
	)
	body := "POST / HTTP/1.1\r\n" + host + "Content-Length: " + itoa(int64(len(both))) + "\r\n\r\n" + both
	for _, single := range []bool{false, true} {
		for _, before := range []string{"", plain, length, chunks, bare, body, plain + length + chunks + bare + body} {
			read, poisoned := readAll(t, before, single)
			require.False(t, poisoned, before)
			require.Equal(t, before, read, "nothing is changed")
			for _, bad := range []string{
				both, strings.ReplaceAll(both, "\r\n", "\n"), strings.Replace(both, "Content-Length", "cONTENT-lENGTH", 1),
				"GET /" + old, "GET /?" + strings.Repeat(" HTTP/1.0", 20) + old,
			} {
				for _, between := range []string{"", "\r\n", "\n", "\r\r\n", "\r\n\r\n"} { // old clients end a body with an empty line
					read, poisoned := readAll(t, before+between+bad+plain, single)
					require.True(t, poisoned, before+between+bad)
					require.NotContains(t, strings.TrimPrefix(read, before+between), "\r\n\r\n", "the head does not end")
					require.NotContains(t, strings.TrimPrefix(read, before+between), "\n\n")
				}
			}
		}
	}
	_, poisoned := readAll(t, "GET / HTTP/1.0 HTTP/1.1\r\n"+host+"Transfer-Encoding: chunked\r\n\r\n", false)
	require.False(t, poisoned)
	lines := func(count int) string { return "GET / HTTP/1.1\r\n" + strings.Repeat("A:\r\n", count) + "\r\n" }
	for _, single := range []bool{false, true} {
		most := lines(maxHeadLines)
		read, poisoned := readAll(t, most+most, single)
		require.False(t, poisoned)
		require.Equal(t, most+most, read)
		read, poisoned = readAll(t, most+lines(maxHeadLines+1), single)
		require.True(t, poisoned)
		require.Equal(t, most+strings.TrimSuffix(most, "\r\n")+"x", read)
	}
	// A length that is only known in part would make what follows another request than for
	// net/http.
	_, poisoned = readAll(t, "POST / HTTP/1.1\r\n"+host+"Content-Length:"+strings.Repeat(" ", 48)+"12\r\n\r\nhello world!", false)
	require.True(t, poisoned)
}

// Chunks count as parts, and those of a KiB do not.
func TestChunksAreCounted(t *testing.T) {
	count := func(chunk string, times int) (parts int) {
		var f framing
		text := []byte("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" +
			strings.Repeat(strconv.FormatInt(int64(len(chunk)), 16)+"\r\n"+chunk+"\r\n", times) + "0\r\nX: y\r\n\r\n")
		for len(text) > 0 {
			n := min(len(text), 4096)
			require.Equal(t, n, f.follow(text[:n]))
			parts += max(0, f.takeChunks(n))
			text = text[n:]
		}
		return parts
	}
	const ending = 3 // the last chunk, and two lines of the trailer
	require.InDelta(t, 1000+ending, count("x", 1000), 6)
	require.InDelta(t, 1000+ending, count(strings.Repeat("x", 100), 1000), 106)
	require.LessOrEqual(t, count(strings.Repeat("x", 2048), 100), ending)
}

// deadlineConn records the deadlines for reading.
type deadlineConn struct {
	net.Conn
	mu  sync.Mutex
	set []time.Time
}

func (c *deadlineConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = append(c.set, t)
	return c.Conn.SetReadDeadline(t)
}

func (c *deadlineConn) deadlines() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.set)
}

// deadlineListener accepts deadlineConns.
type deadlineListener struct {
	net.Listener
	accepted chan *deadlineConn
}

func (l *deadlineListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	recorded := &deadlineConn{Conn: c}
	l.accepted <- recorded
	return recorded, nil
}

// A slow client has the time for a head once: net/http does not begin it again when it gets the
// connection from the lane.
func TestHeadTimeCountsOnce(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener := &deadlineListener{inner, make(chan *deadlineConn, 1)}
	handed := make(chan struct{}, 1)
	server := &http.Server{
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				handed <- struct{}{}
			}
		},
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(NewLane().Listen(listener)) }()
	c := dialTo(t, inner.Addr(), nil)
	c.send("POST /v1/check HTTP/1.1\r\nHost: we")
	conn := <-listener.accepted
	<-handed // after lanePatience
	c.closed()
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
	set := conn.deadlines()
	require.GreaterOrEqual(t, len(set), 3, "of the lane, its patience, and net/http")
	for _, deadline := range set {
		require.False(t, deadline.After(set[0]), set)
	}
}

// The deadline for the first request is carried over, and others are not changed.
func TestHandedDeadlines(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	inner := &deadlineConn{Conn: here}
	by := time.Now().Add(time.Hour)
	c := &handedConn{Conn: inner, headBy: by}
	later := by.Add(time.Minute)
	for range 3 {
		require.NoError(t, c.SetReadDeadline(later))
	}
	require.Equal(t, []time.Time{by, by.Add(readTimeout - readHeaderTimeout), later}, inner.deadlines())
	sooner := by.Add(-time.Minute)
	c = &handedConn{Conn: inner, headBy: by}
	require.NoError(t, c.SetReadDeadline(sooner))
	require.Equal(t, sooner, inner.deadlines()[3])
}

// A slow transfer is canceled while another tenant waits, which then gets its turn: tenants whose
// imports trickle do not keep all others out.
func TestSlotsInTurn(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newSlots(2, func() time.Time { return now })
	take := func(tenant string) (func(), *Problem) {
		return s.takeFor([16]byte([]byte((tenant + "                ")[:16])), transfer{})
	}
	release := map[string]func(){}
	for _, tenant := range []string{"a", "b"} {
		done, p := take(tenant)
		require.Nil(t, p)
		release[tenant] = done
	}
	require.False(t, s.wanted())
	slow := pacedBody{spent: 30 * time.Second, read: 30 * importLeastRate, wanted: s.wanted}
	require.Positive(t, slow.patience())
	_, p := take("c")
	require.Equal(t, codeBulkBusy, p.Code)
	require.True(t, s.wanted())
	require.Negative(t, slow.patience(), "it makes room")
	fast := pacedBody{spent: 30 * time.Second, read: 60 << 20, wanted: s.wanted}
	require.Positive(t, fast.patience())

	release["a"]()
	_, p = take("a")
	require.Equal(t, codeBulkBusy, p.Code, "c is before it")
	done, p := take("c")
	require.Nil(t, p)
	release["b"]()
	again, p := take("a")
	require.Nil(t, p)
	require.False(t, s.wanted())
	again()
	done()

	held, p := take("a")
	require.Nil(t, p)
	second, p := take("b")
	require.Nil(t, p)
	_, p = take("c")
	require.NotNil(t, p)
	held()
	now = now.Add(bulkWait)
	require.False(t, s.wanted(), "c has given up")
	_, p = take("a")
	require.Nil(t, p)
	second()
}
