package usage

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
)

// crowd has the checks of many tenants, second by second.
type crowd struct {
	t       *testing.T
	u       *Recorder
	ledger  *ledger
	now     time.Time
	decided []time.Time // of each check, in their order
	looked  []limit.TenantID
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{t: t, ledger: newLedger(), now: time.UnixMilli(checktest.Start)}
	c.u = New(Options{Sink: c.ledger, Registerer: prometheus.NewRegistry(), Clock: func() time.Time { return c.now },
		Looked: func() []limit.TenantID { return c.looked }})
	return c
}

func member(n int) limit.TenantID {
	id := uuid.UUID{}
	binary.BigEndian.PutUint64(id[8:], uint64(n)) // in all shards by turns
	return id
}

func (c *crowd) check(n, checks int) {
	for range checks {
		c.u.Decided(member(n), &check.Request{}, &check.Decision{Allowed: true, Subject: "user_1", Resource: "r", Cost: 1}, c.now)
		c.decided = append(c.decided, c.now)
	}
}

// second passes a second, and delivers.
func (c *crowd) second() {
	c.now = c.now.Add(time.Second)
	require.NoError(c.t, c.u.flush(context.Background(), false))
}

// written returns the written checks of one tenant.
func (c *crowd) written(n int) (checks int64) {
	for key, counts := range c.ledger.rows {
		if key.Tenant == member(n) {
			checks += counts.Allowed
		}
	}
	return checks
}

// With few tenants, everything is written in the second after it was counted. With many, quiet
// tenants are written together, at most 32 seconds later; busy tenants and those that somebody
// looks at are still written every second. Nothing is lost or counted twice, and a batch never says
// that it is complete up to an instant while an earlier check is not written.
func TestQuietTenantsAreWrittenTogether(t *testing.T) {
	t.Parallel()
	const busy, looked, quiet, tenants = 1, 2, 3, 4000
	c := newCrowd(t)
	for range 5 {
		c.check(busy, 1)
		c.second()
		require.EqualValues(t, len(c.decided), c.ledger.checks())
	}
	earlier := 0
	random := rand.New(rand.NewPCG(1, 2))
	c.looked = []limit.TenantID{member(looked), member(tenants + 1)}
	for second := range 100 {
		for n := range tenants {
			switch {
			case n == busy:
				c.check(n, busyChecks)
			case n == looked, n == quiet && second == 50, n > quiet && random.IntN(2) == 0:
				c.check(n, 1)
			}
		}
		c.second()
		require.EqualValues(t, 5+busyChecks*(second+1), c.written(busy), "in second %d", second)
		require.EqualValues(t, second+1, c.written(looked), "in second %d", second)
		// Every check that was decided before complete_until is written.
		for earlier < len(c.decided) && c.decided[earlier].Before(c.ledger.complete) {
			earlier++
		}
		require.GreaterOrEqual(t, int(c.ledger.checks()), earlier, "in second %d", second)
		require.LessOrEqual(t, c.now.Sub(c.ledger.complete), (maxHold+2)*time.Second, "in second %d", second)
		if second >= 50+maxHold+2 {
			require.EqualValues(t, 1, c.written(quiet))
		}
	}
	require.Greater(t, c.u.hold.seconds, 1)
	require.Less(t, c.ledger.received, 100*(manyTenants+200), "half of %d tenants have checks in each second", tenants)
	require.Less(t, int(c.ledger.checks()), len(c.decided), "some are held")
	require.NoError(t, c.u.flush(context.Background(), true))
	require.EqualValues(t, len(c.decided), c.ledger.checks())
	require.True(t, c.ledger.ended)
	var listed int64
	for _, top := range c.ledger.subjects {
		for _, s := range top.Checks {
			listed += s.Allowed
		}
	}
	require.EqualValues(t, len(c.decided), listed, "the lists of subjects are complete, too")

	// After the crowd has gone, everything is written every second again.
	c = newCrowd(t)
	c.u.hold.seconds = maxHold
	for range 10 {
		c.second()
	}
	c.check(quiet, 1)
	c.second()
	require.EqualValues(t, 1, c.ledger.checks())
}
