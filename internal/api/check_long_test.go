package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// manyRules creates as many rules with long slugs as may match a check, and returns a batch of 100
// checks to which they apply.
func manyRules(t *testing.T, s *checkStack) (batch string) {
	t.Helper()
	for i := range 31 {
		slug := fmt.Sprintf("%02d-%s", i, strings.Repeat("x", 60))
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly(slug, "many", 1_000_000_000, "subject"))
		require.NoError(t, err)
	}
	return batchOf(100, `{"subject":"a","resource":"many"}`)
}

func batchOf(n int, check string) string {
	return `{"checks":[` + strings.TrimSuffix(strings.Repeat(check+",", n), ",") + `]}`
}

// A tenant has 64 MiB of long answers to batches that are in progress or that it does not read, so
// 64 batches at once are not refused even if they are as long as possible. Before, each unread one
// kept up to 4 MB, and nothing bounded them but the number of all requests.
func TestUnreadBatchesAreBoundedByBytes(t *testing.T) {
	s := newCheckStack(t)
	batch := manyRules(t, s)
	s.registry = prometheusRegistry()
	s.deps = s.newDeps(t, memoryEngine())
	size := len(s.post("/v1/check/batch", batch).body)
	require.Greater(t, size, 700<<10)
	ask, read := slowClients(t, s)
	unread := 0
	for ; unread*size <= 64<<20; unread++ {
		if ask(s.key, http.MethodPost, "/v1/check/batch", batch) == http.StatusServiceUnavailable {
			break
		}
	}
	require.GreaterOrEqual(t, unread, 64)
	require.LessOrEqual(t, unread*size, 64<<20)
	require.Equal(t, 200, ask(s.key, http.MethodPost, "/v1/check/batch", batchOf(9, `{"subject":"a"}`)), "short answers do not count")
	require.Equal(t, 200, ask(s.other, http.MethodPost, "/v1/check/batch", batchOf(100, `{"subject":"`+strings.Repeat("a", 256)+`"}`)), "of another tenant")
	read()
	require.Equal(t, 200, ask(s.key, http.MethodPost, "/v1/check/batch", batch), "all answers were read")
}
