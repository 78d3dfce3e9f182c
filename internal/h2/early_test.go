package h2

import (
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// serveRefusals starts a server whose handler answers each request with 401 and reads no body.
func serveRefusals(t *testing.T, bodyEnd time.Duration, places int) *client {
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.BodyEnd, config.Limits.Handlers, config.Limits.HandlersOf = bodyEnd, places, places
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "revoked")
		})
	})
	return dial(t, addr)
}

// An answer that does not need the body comes after a short one, and the stream is not reset:
// clients would report the reset instead of the answer.
func TestEarlyAnswerAwaitsAShortBody(t *testing.T) {
	c := serveRefusals(t, patient, 100)
	for i, end := range []func(id uint32){
		func(id uint32) { c.data(id, true, "lo") },
		func(id uint32) { c.data(id, false, "lo"); c.headers(id, true, c.encode([][2]string{{"a", "b"}})) },
	} {
		id := uint32(1 + 4*i)
		c.open(id, handlerPath, false, "content-length", "5")
		c.data(id, false, "hel")
		c.works(id + 2) // is answered meanwhile
		end(id)
		r := c.answer(id)
		require.Equal(t, []string{"401", "revoked"}, []string{r.head[":status"], r.body})
	}
	c.open(9, handlerPath, false, "content-length", "5")
	require.NoError(t, c.WriteRSTStream(9, http2.ErrCodeCancel))
	c.works(11) // and the server stops, as nothing waits for the other one
}

// The rest of a body is not awaited if it is long, of unknown length or not sent, and not for long.
func TestEarlyAnswerWithoutItsBody(t *testing.T) {
	for name, c := range map[string]struct {
		bodyEnd time.Duration
		fields  []string
	}{
		"long":              {patient, []string{"content-length", strconv.Itoa(shortRest + 1)}},
		"of unknown length": {patient, nil},
		"asked for first":   {patient, []string{"content-length", "5", "expect", "100-continue"}},
		"late":              {time.Millisecond, []string{"content-length", "5"}},
	} {
		client := serveRefusals(t, c.bodyEnd, 100)
		client.open(1, handlerPath, false, c.fields...)
		r := client.answer(1)
		require.Equal(t, []string{"401", "revoked"}, []string{r.head[":status"], r.body}, name)
		f := client.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameRSTStream })
		require.Equal(t, http2.ErrCodeNo, f.(*http2.RSTStreamFrame).ErrCode, name)
		client.works(3)
	}
}

// A request whose body is awaited keeps its place, so that many of them gain nothing.
func TestEarlyAnswerKeepsItsPlace(t *testing.T) {
	c := serveRefusals(t, patient, 1)
	c.open(1, handlerPath, false, "content-length", "5")
	c.open(3, handlerPath, false, "content-length", "5")
	f := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameRSTStream })
	require.Equal(t, http2.ErrCodeRefusedStream, f.(*http2.RSTStreamFrame).ErrCode)
	waits := 4 - f.Header().StreamID
	c.data(waits, true, "hello")
	require.Equal(t, "401", c.answer(waits).head[":status"])
}
