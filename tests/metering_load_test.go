package tests

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// invoiced is what was consumed of one rule by one subject.
type invoiced struct{ Units, Overage, Credits int64 }

const (
	loadClients  = 64
	loadSubjects = 5
	loadPhase    = 600 // answers before the next fault
)

// meteredLoad sends checks to two instances from many clients, and adds up what the answers say.
type meteredLoad struct {
	*client
	instances [2]atomic.Pointer[instance]
	answers   atomic.Int64
	ended     chan struct{}
	clients   sync.WaitGroup

	mu   sync.Mutex
	want map[string]invoiced // by rule and subject
}

// run sends checks until the load ends. A request that is not answered was not decided: an instance
// that stops answers every request that it has read.
func (l *meteredLoad) run(random *rand.Rand, first int) {
	for turn := first; ; turn++ {
		select {
		case <-l.ended:
			return
		default:
		}
		rule, subject, cost := []string{"over", "prepaid", "leased"}[random.IntN(3)], fmt.Sprint("customer ", random.IntN(loadSubjects)), random.Int64N(4)
		got, err := l.try(http.MethodPost, l.instances[turn%2].Load().URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":%q,"cost":%d}`, subject, rule, cost))
		if err != nil {
			continue // the other one is next
		}
		var d struct {
			Allowed bool
			Rules   []struct {
				Overage int64 `json:"overage_units"`
				Credits int64 `json:"credits_spent"`
			}
		}
		switch err := json.Unmarshal(got.body, &d); {
		case err != nil || got.status != http.StatusOK && got.status != http.StatusTooManyRequests:
			l.t.Errorf("%d %s", got.status, got.body)
			return
		case d.Allowed && cost > 0:
			l.mu.Lock()
			sum := l.want[rule+" "+subject]
			sum.Units += cost
			sum.Overage += min(cost, d.Rules[0].Overage) // of all units beyond the limit, the last ones
			sum.Credits += d.Rules[0].Credits
			l.want[rule+" "+subject] = sum
			l.mu.Unlock()
		}
		l.answers.Add(1)
	}
}

// more waits until the clients have got some more answers.
func (l *meteredLoad) more() {
	l.t.Helper()
	until := l.answers.Load() + loadPhase
	require.Eventually(l.t, func() bool { return l.answers.Load() >= until || l.t.Failed() }, patience, tick)
	require.False(l.t, l.t.Failed())
}

// recorded returns what is metered, and the credits that were spent.
func (l *meteredLoad) recorded(since time.Time) map[string]invoiced {
	l.t.Helper()
	at := l.instances[0].Load().URL()
	out := map[string]invoiced{}
	var report struct {
		Items []struct {
			Subject, Rule string
			Units         int64
			Overage       int64 `json:"overage_units"`
		}
	}
	got := l.do(http.MethodGet, at+"/v1/usage/metered?open=true&grain=period&limit=200&from="+since.Format(time.RFC3339), "", http.StatusOK)
	require.NoError(l.t, json.Unmarshal(got.body, &report))
	for _, item := range report.Items {
		out[item.Rule+" "+item.Subject] = invoiced{Units: item.Units, Overage: item.Overage}
	}
	for n := range loadSubjects {
		var grants struct{ Items []struct{ Spent int64 } }
		subject := fmt.Sprint("customer ", n)
		got := l.do(http.MethodGet, at+"/v1/subjects/"+url.PathEscape(subject)+"/credits", "", http.StatusOK)
		require.NoError(l.t, json.Unmarshal(got.body, &grants))
		sum := out["prepaid "+subject]
		for _, grant := range grants.Items {
			sum.Credits += grant.Spent
		}
		if sum != (invoiced{}) {
			out["prepaid "+subject] = sum
		}
	}
	return out
}

// Under load of 64 clients on two instances, through an outage of Postgres and the restart of an
// instance, the metered units, the overage and the spent credits are the sums of the answers, to
// the unit.
func TestMeteringAddsUpUnderLoad(t *testing.T) {
	s := newSettings(t)
	database, err := url.Parse(s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	door := newDoor(t, database.Host)
	door.open()
	database.Host = door.addr
	through := s.With(settings{"WEIR_DATABASE_URL": database.String()})
	l := &meteredLoad{ended: make(chan struct{}), want: map[string]invoiced{}}
	for i := range l.instances {
		l.instances[i].Store(start(t, through).AwaitReady())
	}
	first, second := l.instances[0].Load(), l.instances[1].Load()
	l.client = newTenant(t, s, first)
	for slug, fields := range map[string]string{
		"over": `"limit":100,"overage":"allow","metering":"overage"`, "prepaid": `"limit":30,"metering":"units"`,
		"leased": `"limit":1000000,"consistency":"leased","metering":"units"`,
	} {
		l.putRule(slug, fmt.Sprintf(`{"resource":%q,"algorithm":"fixed_window_first_hit","window":"1d",%s}`, slug, fields), first, second)
	}
	for n := range loadSubjects {
		for _, units := range []int{100, 10_000} { // the first is used up
			l.do(http.MethodPost, first.URL()+"/v1/subjects/"+url.PathEscape(fmt.Sprint("customer ", n))+"/credits",
				fmt.Sprintf(`{"rule":"prepaid","units":%d}`, units), http.StatusCreated)
		}
	}

	since := time.Now().UTC().Truncate(time.Hour)
	for n := range loadClients {
		l.clients.Go(func() { l.run(rand.New(rand.NewPCG(12, uint64(n))), n) })
	}
	end := sync.OnceFunc(func() { close(l.ended); l.clients.Wait() })
	defer end()
	l.more()
	door.close()
	for _, i := range []*instance{first, second} {
		i.AwaitLog("metered units cannot be written and are kept in memory")
	}
	l.more()
	door.open()
	l.more()
	require.Zero(t, second.Stop())
	l.more()
	l.instances[1].Store(start(t, through).AwaitReady())
	l.more()
	end()
	for n := range loadSubjects {
		subject := fmt.Sprint("customer ", n)
		require.Positive(t, l.want["over "+subject].Overage, "the load passes the limit")
		require.Greater(t, l.want["prepaid "+subject].Credits, int64(100), "the load uses up a grant")
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, l.want, l.recorded(since))
	}, patience, 10*tick)
	t.Logf("%d answers", l.answers.Load())
}
