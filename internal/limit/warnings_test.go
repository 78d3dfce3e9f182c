package limit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A missing warning costs somebody an evening. A wrong warning costs trust.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*Rule)
		instances int
		want      string // field: ...
	}{
		"no warnings":         {func(*Rule) {}, 1, ""},
		"more instances":      {func(r *Rule) { r.Limit = 2 }, 3, "on_unavailable"},
		"as many instances":   {func(r *Rule) { r.Limit = 3 }, 3, ""},
		"more, but denied":    {func(r *Rule) { r.Limit, r.OnUnavailable = 2, Deny }, 3, ""},
		"one counter for all": {func(r *Rule) { r.By = nil }, 1, "by"},
		"an attribute":        {func(r *Rule) { r.By = []string{"subject", "attributes.ip"} }, 1, "by"},
		"a fixed window":      {func(r *Rule) { r.Algorithm = FixedWindow }, 1, "algorithm"},
		"a long log":          {func(r *Rule) { r.Algorithm, r.Limit = SlidingWindowLog, 1001 }, 1, "algorithm"},
		"a short log":         {func(r *Rule) { r.Algorithm, r.Limit = SlidingWindowLog, 1000 }, 1, ""},
		"a small bucket":      {func(r *Rule) { r.Algorithm, r.Limit, r.Burst = TokenBucket, 10, 9 }, 1, "burst"},
		"a bucket of its own": {func(r *Rule) { r.Algorithm = TokenBucket }, 1, ""},
		"a long queue":        {func(r *Rule) { r.Algorithm, r.Limit, r.Burst = LeakyBucketQueue, 1, 2 }, 1, "burst"},
		"a short queue":       {func(r *Rule) { r.Algorithm, r.Limit, r.Burst = LeakyBucketQueue, 1, 1 }, 1, ""},
		"a lease of nothing":  {func(r *Rule) { r.Limit, r.Consistency = 7, Leased }, 1, "consistency"},
		"a lease of a little": {func(r *Rule) { r.Limit, r.Consistency = 8, Leased }, 1, ""},
		"a lease of a fast bucket": {func(r *Rule) {
			r.Algorithm, r.Limit, r.Burst, r.Consistency = TokenBucket, 1_000_000, 1_000_000, Leased
			r.Window.MS = 1_000
		}, 1, ""},
		"a lease of a bucket": {func(r *Rule) {
			r.Algorithm, r.Limit, r.Consistency = TokenBucket, 1_000, Leased
			r.Window.MS = 1_000
			r.Burst = 1_000
		}, 1, ""},
		"off, so nothing happens": {func(r *Rule) { r.By, r.Mode = nil, Off }, 1, ""},
	} {
		r := perMinute("r", 5)
		r.Algorithm, r.By = SlidingWindowCounter, []string{"subject"}
		c.change(&r)
		require.Empty(t, r.Validate(), name)
		got := r.Warnings(c.instances)
		if c.want == "" {
			require.Empty(t, got, name)
			continue
		}
		require.Len(t, got, 1, name)
		require.Equal(t, c.want, got[0].Field, name)
	}
}
