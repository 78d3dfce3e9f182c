package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/overload"
	"weir/internal/places"
	"weir/internal/tenants"
)

// repeated returns a JSON document of at most size bytes that has an item as often as fits.
func repeated(before, item, after string, size int) string {
	n := (size - len(before) - len(after) - len(item)) / (len(item) + 1)
	return before + strings.Repeat(item+",", n) + item + after
}

// No body makes the validator collect errors in an amount that is out of proportion: it is refused
// with less than 200 bytes allocated for each of its bytes, most of them to decode it. Not
// parallel, because it counts all that is allocated.
func TestInvalidBodiesCost(t *testing.T) {
	doc := mountAdmin(chi.NewRouter(), Deps{Logger: slog.New(slog.DiscardHandler), Processors: places.NewProcessors(2)})
	config, simulate, rules := doc.Paths["/v1/config"].Put, doc.Paths["/v1/simulate"].Post, doc.Paths["/v1/rules"].Post
	const rule = `{"slug":"a","limit":1,"window":"1s","by":`
	for name, c := range map[string]struct {
		op   *huma.Operation
		body string
	}{
		"empty objects":      {config, repeated(`{"rules":[`, `{}`, `]}`, maxConfigBody)},
		"zeros":              {config, repeated(`{"rules":[`, `0`, `]}`, maxConfigBody)},
		"too many rules":     {config, repeated(`{"rules":[`, `{"a":{}}`, `]}`, maxConfigBody)},
		"plans of no list":   {config, repeated(`{"plans":[`, `{   "a":0}`, `]}`, maxConfigBody)},
		"invalid plans":      {config, repeated(`{"plans":[`, `{"slug":0}`, `]}`, maxConfigBody)},
		"a long name":        {config, repeated(`{"plans":[{"limits":{"`+strings.Repeat("k", 1<<20)+`":[`, `{"a":0}`, `]}}]}`, maxConfigBody)},
		"simulate":           {simulate, repeated(`{"rules":[`, `{}`, `]}`, maxAdminBody)},
		"simulate, requests": {simulate, repeated(`{"rules":[],"requests":[`, `{"a":0}`, `]}`, maxAdminBody)},
		"by":                 {rules, repeated(rule+`[`, `0`, `]}`, maxAdminBody)},
		"by, fewer":          {rules, repeated(rule+`[`, `0   `, `]}`, maxAdminBody)},
		"unknown fields":     {rules, distinctMembers(maxAdminBody)},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			p := refusalOf(doc.Components.Schemas, c.op, []byte(c.body))
			runtime.ReadMemStats(&after)
			require.NotNil(t, p)
			each := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(c.body))
			t.Logf("%.0f bytes for each: %d %s", each, p.Status, p.Detail)
			require.Less(t, each, 200.0)
			require.LessOrEqual(t, len(p.Errors), maxProblemFields)
		})
	}
}

// refusalOf returns the problem of a body, as the guard and readConfig find it.
func refusalOf(registry huma.Registry, op *huma.Operation, body []byte) *Problem {
	if p := checkJSON(body); p != nil {
		return p
	}
	if !op.SkipValidateBody {
		return boundErrors(registry, op, body)
	}
	var tree any
	if err := jsonFormat.Unmarshal(body, &tree); err != nil {
		return problemOf(err)
	}
	return manyInvalid(validate(registry, op.RequestBody.Content[jsonType].Schema, tree))
}

func distinctMembers(size int) string {
	var b strings.Builder
	b.WriteString(`{"slug":"a"`)
	for i := 0; b.Len() < size-20; i++ {
		b.WriteString(`,"x` + itoa(int64(i)) + `":0`)
	}
	return b.String() + "}"
}

// Large bodies get clear answers, and each one gives its turn back, in whatever way it ends: there
// are more of them here than turns.
func TestLargeBodies(t *testing.T) {
	s := newAdminStack(t)
	values := "at most 400000 values"
	require.Contains(t, s.call(s.key, http.MethodPut, "/v1/config", repeated(`{"rules":[`, `{}`, `]}`, maxConfigBody)).
		problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge).Detail, values)
	require.Contains(t, s.call(s.key, http.MethodPost, "/v1/rules", repeated(`{"by":[`, `0`, `]}`, maxAdminBody)).
		problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge).Detail, values)
	require.Contains(t, s.call(s.key, http.MethodPut, "/v1/config", filled("rules: [", "0,", "0]")(1<<20), asYAML).
		problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge).Detail, values)
	require.Contains(t, s.call(s.key, http.MethodPost, "/v1/rules", `{"`+strings.Repeat("k", maxMemberName+1)+`":0}`).
		problem(http.StatusBadRequest, codeMalformedJSON).Detail, "longer than 1024 bytes")
	for range 5 {
		require.Equal(t, "More than 10000 fields are not valid; errors names 100 of them.", s.call(s.key, http.MethodPost, "/v1/rules",
			repeated(`{"slug":"a","limit":1,"window":"1s","by":[`, `0   `, `]}`, maxAdminBody)).problem(422, codeInvalidRequest).Detail)
		long := s.call(s.readKey, http.MethodPost, "/v1/simulate", repeated(`{"rules":[`, `{   }`, `]}`, maxAdminBody)).problem(422, codeInvalidRequest)
		require.Equal(t, []ProblemField{{Pointer: "/rules", Message: "must have 32 or fewer items", Fix: "Send at most 32."}}, long.Errors)
		many := s.call(s.key, http.MethodPut, "/v1/config", repeated(`{"plans":[`, `{"slug":0}`, `]}`, 1<<20)).problem(422, codeInvalidRequest)
		require.Equal(t, "More than 10000 fields are not valid; errors names 100 of them.", many.Detail)
		require.Len(t, many.Errors, maxProblemFields)
		valid := `{"slug":"big","limit":1,"window":"1s"` + strings.Repeat(" ", largeBody) + `}`
		require.Contains(t, []int{http.StatusCreated, http.StatusConflict}, s.call(s.key, http.MethodPost, "/v1/rules", valid).status)
		s.call(s.key, http.MethodPut, "/v1/config", "rules: []\n"+strings.Repeat(" \n", largeBody/2), asYAML).ok(200)
		s.call(s.key, http.MethodPost, "/v1/rules", `{`+strings.Repeat(" ", largeBody)).problem(http.StatusBadRequest, codeMalformedJSON)
	}
}

// A tenant has 32 MiB of large bodies that arrive or wait for their turn. Before, it could make an
// instance keep 64 of 4 MiB, and each further tenant as many again.
func TestBytesOfBodies(t *testing.T) {
	t.Parallel()
	c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(1000), places.NewProcessors(2))
	take := func(tenant limit.TenantID, length int64) (*request, *Problem) {
		q := &request{ResponseWriter: httptest.NewRecorder(), capacity: c, authed: true, actor: tenants.AsSystem(tenant, "test")}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), requestKey{}, q), http.MethodPut, "/", http.NoBody)
		r.ContentLength = length
		return q, q.hold(r, maxConfigBody)
	}
	ada, bob := limit.TenantID{1}, limit.TenantID{2}
	var held []*request
	for i := range maxTenantBodies / maxConfigBody {
		length := int64(maxConfigBody)
		if i%2 == 1 {
			length = -1 // it may be as long
		}
		q, p := take(ada, length)
		require.Nil(t, p)
		held = append(held, q)
	}
	q, p := take(ada, largeBody+1)
	require.NotNil(t, p)
	require.Equal(t, http.StatusServiceUnavailable, p.Status)
	require.Nil(t, q.end)
	_, p = take(ada, largeBody)
	require.Nil(t, p, "other bodies do not count")
	_, p = take(bob, maxConfigBody+1)
	require.Nil(t, p, "other tenants are not affected")
	held[0].end()
	_, p = take(ada, largeBody+1)
	require.Nil(t, p)
}

// sender returns a function that reads the body of a request, and returns the request, which has
// its turn if the body needs one.
func sender(t *testing.T, c *capacity) func(ctx context.Context, tenant limit.TenantID, mediaType, body string) (*request, *Problem) {
	op := &huma.Operation{RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: {}, yamlType: {}}}}
	return func(ctx context.Context, tenant limit.TenantID, mediaType, body string) (*request, *Problem) {
		require.True(t, c.enter())
		defer c.leave()
		q := &request{ResponseWriter: httptest.NewRecorder(), capacity: c, authed: true, actor: tenants.AsSystem(tenant, "test")}
		r := httptest.NewRequestWithContext(context.WithValue(ctx, requestKey{}, q), http.MethodPut, "/", io.NopCloser(strings.NewReader(body)))
		r.Header.Set("Content-Type", mediaType)
		_, p := readDocument(r, op)
		return q, p
	}
}

func requireOverloaded(t *testing.T, p *Problem) {
	t.Helper()
	require.NotNil(t, p)
	require.Equal(t, http.StatusServiceUnavailable, p.Status)
	require.Positive(t, p.retryAfter)
}

// A tenant that has all its turns is answered 503, and other tenants are not affected. A request
// whose client has disconnected does nothing more.
func TestTurnsOfBodies(t *testing.T) {
	t.Parallel()
	c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(100), places.NewProcessors(2))
	c.bodies = newBodyTurns(places.NewProcessors(16))
	c.bodies.wait = 0
	send, overloaded := sender(t, c), func(p *Problem) { t.Helper(); requireOverloaded(t, p) }
	large := `{"a":"` + strings.Repeat("x", smallBody) + `"}`
	ada, bob, eve := limit.TenantID{1}, limit.TenantID{2}, limit.TenantID{3}
	var held []*request
	for _, tenant := range []limit.TenantID{ada, bob} {
		for range 2 {
			q, p := send(t.Context(), tenant, jsonType, large)
			require.Nil(t, p)
			held = append(held, q)
		}
		_, p := send(t.Context(), tenant, jsonType, large)
		overloaded(p)
		_, p = send(t.Context(), tenant, jsonType, "{}")
		require.Nil(t, p, "small bodies need no turn")
	}
	_, p := send(t.Context(), eve, jsonType, large)
	overloaded(p) // all turns are taken
	held[0].endTurn()
	held[0].endTurn() // ends once
	q, p := send(t.Context(), eve, jsonType, large)
	require.Nil(t, p)
	_, p = send(t.Context(), eve, jsonType, large)
	overloaded(p)
	require.True(t, c.enter())
	q.WriteHeader(http.StatusUnprocessableEntity) // and its client does not read the answer
	q, p = send(t.Context(), eve, jsonType, large)
	require.Nil(t, p)
	q.endTurn()

	c.bodies.wait = turnWait
	gone, stop := context.WithCancel(t.Context())
	stop()
	_, p = send(gone, eve, jsonType, large)
	overloaded(p)
	_, p = jsonOfYAML(gone, []byte(repeated("[", "0", "]", 4*yamlCheckEvery)))
	require.NotNil(t, p)
	require.Contains(t, p.Detail, "ended")
}

// A body of up to 4 KiB does not wait for large ones, in JSON or YAML. Before, it waited behind
// each document of 4 MiB of other tenants, up to a second for each, and was answered 503.
func TestSmallBodiesWaitForNoLargeOnes(t *testing.T) {
	t.Parallel()
	c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(100), places.NewProcessors(2))
	c.bodies = newBodyTurns(places.NewProcessors(2))
	c.bodies.wait = 0
	send := sender(t, c)
	ada, bob := limit.TenantID{1}, limit.TenantID{2}
	json := func(size int) string { return `{"a":"` + strings.Repeat("x", size-8) + `"}` }
	yaml := func(size int) string { return "a: " + strings.Repeat("x", size-3) }

	large, p := send(t.Context(), ada, jsonType, json(smallBody+1))
	require.Nil(t, p)
	_, p = send(t.Context(), bob, jsonType, json(smallBody+1))
	requireOverloaded(t, p)
	for _, body := range []struct{ mediaType, text string }{
		{jsonType, json(turnBody + 1)}, {jsonType, json(smallBody)}, {yamlType, yaml(turnBody + 1)}, {yamlType, yaml(smallBody)}, {yamlType, "a: b"},
	} {
		small, p := send(t.Context(), bob, body.mediaType, body.text)
		require.Nil(t, p, body)
		require.NotNil(t, small.turn)
		_, p = send(t.Context(), ada, jsonType, json(smallBody))
		requireOverloaded(t, p) // small ones take turns, too
		_, p = send(t.Context(), ada, jsonType, json(turnBody))
		require.Nil(t, p, "the smallest need none")
		small.endTurn()
	}
	large.endTurn()
	small, p := send(t.Context(), ada, yamlType, yaml(smallBody))
	require.Nil(t, p)
	_, p = send(t.Context(), bob, yamlType, yaml(smallBody+1))
	require.Nil(t, p, "large ones do not wait for small ones, either")
	small.endTurn()
}

// A large body in YAML takes its turn among those before the one among all large bodies. The other
// way round, bodies in JSON would wait for YAML of other tenants, and it could wait twice as long.
func TestYAMLTakesItsTurnFirst(t *testing.T) {
	t.Parallel()
	c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(100), places.NewProcessors(2))
	c.bodies = newBodyTurns(places.NewProcessors(2))
	c.bodies.wait = time.Hour
	send := sender(t, c)
	ada, bob, eve := limit.TenantID{1}, limit.TenantID{2}, limit.TenantID{3}
	large := "a: " + strings.Repeat("x", smallBody)
	leaveYAML, err := c.bodies.yaml.Take(t.Context(), ada)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	sent := make(chan *Problem)
	go func() {
		_, p := send(ctx, bob, yamlType, large)
		sent <- p
	}()
	require.Eventually(t, func() bool { return c.bodies.yaml.Waiting() == 1 }, time.Minute, time.Millisecond)
	leaveLarge, err := c.bodies.large.TakeWithin(t.Context(), eve, 0)
	require.NoError(t, err, "the one that waits for YAML has no turn of JSON")
	leaveYAML()
	require.Eventually(t, func() bool { return c.bodies.large.Waiting() == 1 }, time.Minute, time.Millisecond)
	_, err = c.bodies.yaml.TakeWithin(t.Context(), ada, 0)
	require.Error(t, err, "it has the turn of YAML")
	stop()
	requireOverloaded(t, <-sent)
	leaveYAML, err = c.bodies.yaml.TakeWithin(t.Context(), ada, 0)
	require.NoError(t, err)
	leaveYAML()
	leaveLarge()
}

// A body in YAML waits for both of its turns no longer than one in JSON for its own.
func TestYAMLWaitsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(100), places.NewProcessors(2))
		c.bodies = newBodyTurns(places.NewProcessors(2))
		send := sender(t, c)
		ada, bob := limit.TenantID{1}, limit.TenantID{2}
		leaveYAML, err := c.bodies.yaml.Take(t.Context(), ada)
		require.NoError(t, err)
		leaveLarge, err := c.bodies.large.Take(t.Context(), ada)
		require.NoError(t, err)
		time.AfterFunc(turnWait-time.Millisecond, leaveYAML)
		began := time.Now() // of a clock that stands still
		_, p := send(t.Context(), bob, yamlType, "a: "+strings.Repeat("x", smallBody))
		requireOverloaded(t, p)
		require.Equal(t, turnWait, time.Since(began))
		leaveLarge()
	})
}
