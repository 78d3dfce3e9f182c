package api

import (
	"bytes"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
)

// takeChecks takes all turns of short work for other tenants. Requests do not wait for them.
func takeChecks(t *testing.T, c *capacity) (free func()) {
	c.bodies.wait = 0
	var held []func()
	for i := range 2 * runtime.GOMAXPROCS(0) {
		if leave, err := c.bodies.small.TakeWithin(t.Context(), limit.TenantID{byte(i + 1)}, 0); err == nil {
			held = append(held, leave)
		}
	}
	require.NotEmpty(t, held)
	return func() {
		for _, leave := range held {
			leave()
		}
	}
}

// Large batches, and large heads for a route, are decoded in turn. Before, a tenant that sent many
// of them kept all processors from the checks of others.
func TestLargeChecksTakeTurns(t *testing.T) {
	s := newCheckStack(t)
	r := route.New("edge")
	r.Subject = []string{"header:X-User", "cookie:sid"}
	r.DefaultResource = "bulk"
	s.addRoute(r)
	long, few := strings.Repeat("x", largeCheck), strings.Repeat("x", largeCheck/2)
	batch := func(padding int) (status int) {
		return s.post("/v1/check/batch", `{"checks":[{"subject":"ada","resource":"bulk"}]`+strings.Repeat(" ", padding)+`}`).status
	}
	single := func(padding int) int {
		return s.check(`{"subject":"ada","resource":"bulk"` + strings.Repeat(" ", padding) + `}`).status
	}
	through := func(cookie string) int {
		c := s.dial()
		c.send(s.askRoute(http.MethodGet, "/edge", "X-User: ada", "Cookie: a="+cookie))
		return c.receive().status
	}
	free := takeChecks(t, s.lane.server.Load().capacity)
	require.Equal(t, http.StatusServiceUnavailable, batch(maxCheckBody))
	require.Equal(t, http.StatusServiceUnavailable, single(largeCheck))
	require.Equal(t, http.StatusServiceUnavailable, through(long))
	require.Equal(t, http.StatusOK, batch(maxCheckBody/2), "small ones need no turn")
	require.Equal(t, http.StatusOK, single(largeCheck/2))
	require.Equal(t, http.StatusNoContent, through(few))
	require.Equal(t, http.StatusNoContent, s.authorize(http.MethodGet, "Weir-Subject: ada", "Cookie: a="+long).status, "without a route, headers are read once")
	free()
	for range 2 { // no turn is lost
		require.Equal(t, http.StatusOK, batch(maxCheckBody))
		require.Equal(t, http.StatusOK, single(largeCheck))
		require.Equal(t, http.StatusNoContent, through(long))
	}
}

func TestLargeCallsTakeTurns(t *testing.T) {
	s := newEnvoyStack(t)
	s.addRoute(edge())
	call := func(size int) codes.Code {
		_, err := s.call(asking(described("x-user", "ada", "cookie", "a="+strings.Repeat("x", size))))
		return status.Code(err)
	}
	malformed := func() codes.Code {
		_, err := s.callRaw(append(bytes.Repeat([]byte{0x0a, 0}, largeCheck/2), 0xff))
		return status.Code(err)
	}
	free := takeChecks(t, s.grpc.server.Load().capacity)
	require.Equal(t, codes.Unavailable, call(largeCheck))
	require.Equal(t, codes.Unavailable, malformed(), "a message is parsed in its turn")
	require.Equal(t, codes.OK, call(largeCheck/2))
	free()
	require.Equal(t, codes.OK, call(largeCheck))
	require.Equal(t, codes.InvalidArgument, malformed())
}

// Of an object of very many attributes, few names are compared. Before, a body of 195 KB took 6 ms.
func TestManyAttributesAreNotCompared(t *testing.T) {
	var d decoder
	body := func(names ...string) []byte {
		return []byte(`{"subject":"ada","attributes":{"` + strings.Join(names, `":"x","`) + `":"x"}}`)
	}
	names := make([]string, 10_000)
	for i := range names {
		names[i] = itoa(int64(i))
	}
	var req check.Request
	code := func(names ...string) string { return d.decodeCheck(body(names...), &req).Code }
	require.Equal(t, codeInvalidRequest, code(names...))
	few := names[:limit.MaxAttributes+2]
	require.Equal(t, codeDuplicateField, code(append(few[:len(few):len(few)], "0")...))
	require.Equal(t, codeDuplicateField, code(append(few[:len(few):len(few)], few[len(few)-1])...))
	all := body(names...)
	require.Less(t, testing.AllocsPerRun(5, func() { d.decodeCheck(all, &req) }), float64(2*maxComparedNames))
}
