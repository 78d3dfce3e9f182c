package tests

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
)

var (
	billingEvents = flag.Int("billing-events", 400, "how many events TestBillingEventsSurviveKills sends in each order")
	billingKills  = flag.Int("billing-kills", 4, "how often TestBillingEventsSurviveKills kills the server")
)

// billingStory is a server that is killed at times, and two tenants with the same plans.
type billingStory struct {
	t      *testing.T
	s      settings
	mu     sync.RWMutex // held while the server is down
	server *instance
}

const (
	// lookEvery is long, because each look costs the server more than an event.
	lookEvery = 500 * time.Millisecond
	// noProgress is the time after which a server without progress has lost events. Pages of 200
	// events count as one step.
	noProgress = 5 * time.Minute
)

// storyEndpoints is the number of endpoints of each tenant: each accepts a thousand events at once.
const storyEndpoints = 10

func (b *billingStory) url() string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.server.URL()
}

// kill ends the server in the middle of its work, and starts another one.
func (b *billingStory) kill() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.server.Signal(syscall.SIGKILL)
	b.server.Exit()
	b.server = start(b.t, b.s).AwaitReady()
}

// storyTenant is one of the two tenants.
type storyTenant struct {
	*client
	hooks []string // paths of its endpoints
}

func (b *billingStory) tenant(operator *client, slug string) *storyTenant {
	b.t.Helper()
	url := b.url()
	var made struct {
		Key struct{ Secret string } `json:"key"`
	}
	got := operator.do(http.MethodPost, url+"/v1/tenants", `{"slug":"`+slug+`","name":"`+slug+`"}`, http.StatusCreated)
	require.NoError(b.t, json.Unmarshal(got.body, &made))
	out := &storyTenant{client: newClient(b.t, made.Key.Secret)}
	for _, plan := range []string{"free", "pro", "scale"} {
		out.do(http.MethodPut, url+"/v1/plans/"+plan, `{}`, http.StatusCreated)
	}
	out.do(http.MethodPut, url+"/v1/rules/api", `{"resource":"api","algorithm":"fixed_window","limit":1,"window":"month"}`, http.StatusCreated)
	for n := range storyEndpoints {
		var endpoint struct{ ID, URL string }
		got := out.do(http.MethodPost, url+"/v1/billing/endpoints", `{"provider":"stripe","signing_secrets":["whsec_story"],
			"subject_from":"metadata.user","grace_days":2,"fallback_plan":"free"}`, http.StatusCreated)
		require.NoError(b.t, json.Unmarshal(got.body, &endpoint))
		out.hooks = append(out.hooks, "/v1/webhooks/stripe/"+endpoint.ID)
		for price, stands := range map[string]string{"pro": `"plan":"pro"`, "scale": `"plan":"scale","multiply":true`, "pack": `"credits":{"rule":"api","units":10}`} {
			out.do(http.MethodPut, fmt.Sprintf("%s/v1/billing/prices/price_%s_%d", url, price, n), `{`+stands+`,"endpoint":"`+endpoint.ID+`"}`, http.StatusCreated)
		}
	}
	return out
}

// storyEvent is an event for one of the endpoints.
type storyEvent struct {
	endpoint int
	body     string
}

// storyEvents returns events in the order of the provider's time. Their customers pay, fail to pay,
// change their plan, its quantity and their cycle, pause and cancel, with up to two subscriptions
// each. They buy credits, of which some are refunded, and some customers are deleted.
func storyEvents(random *rand.Rand, count int) (out []storyEvent) {
	customers := storyCustomers(count)
	purchases := map[int][]int{} // of each customer, not refunded
	began := time.Now().Add(-time.Duration(count)*13*time.Minute - 30*24*time.Hour)
	for n := range count {
		customer := random.IntN(customers)
		endpoint := customer % storyEndpoints
		user, name, subscription := fmt.Sprintf("user-%d", customer), fmt.Sprintf("cus_%d", customer), fmt.Sprintf("sub_%d_%d", customer, random.IntN(2))
		price := fmt.Sprintf("price_%s_%d", []string{"pro", "scale"}[random.IntN(2)], endpoint)
		typ, object := "customer.subscription.updated", ""
		subscribed := func(status string) string {
			return fmt.Sprintf(`{"id":%q,"customer":%q,"status":%q,"created":1690000000,"billing_cycle_anchor":%d,"metadata":{"user":%q},
				"items":{"data":[{"quantity":%d,"price":{"id":%q}}]}}`,
				subscription, name, status, 1_690_000_000+random.IntN(4)*86_400, user, 1+random.IntN(5), price)
		}
		bill := fmt.Sprintf(`{"customer":%q,"parent":{"subscription_details":{"subscription":%q}}}`, name, subscription)
		switch random.IntN(12) {
		case 0:
			typ, object = "invoice.payment_failed", bill
		case 1:
			typ, object = "invoice.paid", bill
		case 2:
			typ, object = "customer.subscription.deleted", subscribed("canceled")
		case 3:
			typ, object = "customer.updated", fmt.Sprintf(`{"id":%q,"metadata":{"user":%q}}`, name, user)
		case 4:
			typ, object = "invoice.paid", fmt.Sprintf(`{"id":"in_%[1]d","customer":%[2]q,"payment_intent":"pi_%[1]d","metadata":{"user":%[3]q},
				"lines":{"data":[{"id":"il_%[1]d","quantity":%[4]d,"price":{"id":"price_pack_%[5]d"}}]}}`, n, name, user, 1+random.IntN(3), endpoint)
			purchases[customer] = append(purchases[customer], n)
		case 5:
			typ, object = "customer.deleted", fmt.Sprintf(`{"id":%q}`, name)
			if bought := purchases[customer]; len(bought) > 0 {
				typ, object = "charge.refunded", fmt.Sprintf(`{"id":"ch_%[1]d","payment_intent":"pi_%[1]d","customer":%[2]q,"refunded":true}`, bought[0], name)
				purchases[customer] = bought[1:]
			} else if random.IntN(3) > 0 { // few customers are deleted
				typ, object = "invoice.paid", bill
			}
		default:
			object = subscribed([]string{"active", "active", "trialing", "past_due", "paused", "unpaid"}[random.IntN(6)])
		}
		out = append(out, storyEvent{endpoint, fmt.Sprintf(`{"object":"event","id":"evt_%06d","type":%q,"created":%d,"livemode":false,"data":{"object":%s}}`,
			n, typ, began.Add(time.Duration(n)*13*time.Minute).Unix(), object)})
	}
	return out
}

// storyCustomers is the number of customers of so many events.
func storyCustomers(count int) int { return max(count/20, 1) }

// send sends events over several connections. After as many answers as kills has numbers, in
// ascending order, the server is killed: other requests are on their way at that moment, and events
// are being processed. The events of one lane are sent in order.
func (b *billingStory) send(to *storyTenant, lanes [][]storyEvent, kills []int) {
	b.t.Helper()
	var answers atomic.Int64
	turns := make([]chan struct{}, len(kills))
	for i := range turns {
		turns[i] = make(chan struct{})
	}
	var senders sync.WaitGroup
	for _, lane := range lanes {
		senders.Go(func() {
			for _, e := range lane {
				b.deliver(to, e)
				n := int(answers.Add(1))
				if turn := slices.Index(kills, n); turn >= 0 {
					close(turns[turn])
				}
			}
		})
	}
	for i := range turns {
		<-turns[i]
		b.kill()
	}
	senders.Wait()
	require.False(b.t, b.t.Failed())
}

// deliver sends an event as a provider does: again until the answer is 200.
func (b *billingStory) deliver(to *storyTenant, e storyEvent) {
	for attempts := range 1000 {
		now := strconv.FormatInt(time.Now().Unix(), 10)
		got, err := to.tryWith(http.MethodPost, b.url()+to.hooks[e.endpoint], e.body,
			http.Header{"Stripe-Signature": {"t=" + now + ",v1=" + stripeSignature("whsec_story", now, e.body)}})
		switch {
		case err != nil: // the server was killed: url waits for the next one
		case got.status == http.StatusOK:
			return
		case got.status == http.StatusServiceUnavailable, got.status == http.StatusTooManyRequests:
			<-time.After(time.Duration(attempts+1) * tick) // as a provider waits
		default:
			b.t.Errorf("%d %s", got.status, got.body)
			return
		}
	}
	b.t.Error("no answer 200 to an event")
}

var (
	backlogLine = regexp.MustCompile(`weir_billing_backlog\{of="events"\} (\S+)`)
	outcomeLine = regexp.MustCompile(`weir_billing_events_total\{outcome="\w+"\} (\S+)`)
)

// metric returns the sum of a metric, and whether the server has it already.
func (b *billingStory) metric(line *regexp.Regexp) (sum int, known bool) {
	b.t.Helper()
	for _, found := range line.FindAllStringSubmatch(b.server.Metrics(), -1) {
		value, err := strconv.ParseFloat(found[1], 64)
		require.NoError(b.t, err)
		sum, known = sum+int(value), true
	}
	return sum, known
}

// settle waits until all events of a tenant are processed, and returns their outcomes. The server
// is killed after it has processed as many events as kills says, and so is each one after it;
// killed counts them. settle fails without any progress.
func (b *billingStory) settle(of *storyTenant, kills []int) (outcomes map[string]string, killed int) {
	b.t.Helper()
	least, since := math.MaxInt, time.Now()
	for ; ; <-time.After(lookEvery) {
		left, known := b.metric(backlogLine)
		if killed < len(kills) && (!known || left > 0) {
			if processed, _ := b.metric(outcomeLine); processed >= kills[killed] {
				b.kill()
				killed++
			}
			continue
		}
		if left == 0 { // the server may not have noticed the last ones, so the events themselves say it
			outcomes, left = b.outcomes(of)
		}
		if left == 0 {
			return outcomes, killed
		}
		if left < least {
			least, since = left, time.Now()
		}
		require.Less(b.t, time.Since(since), noProgress, "%d events are not processed", left)
	}
}

// outcomes returns every event of a tenant with its outcome, and how many are not processed.
func (b *billingStory) outcomes(of *storyTenant) (out map[string]string, left int) {
	b.t.Helper()
	out = map[string]string{}
	for cursor := ""; ; {
		var page struct {
			Items []struct {
				Event   string `json:"event_id"`
				Outcome string `json:"outcome"`
			} `json:"items"`
			Next string `json:"next_cursor"`
		}
		got := of.do(http.MethodGet, b.url()+"/v1/billing/events?limit=100"+cursor, "", http.StatusOK)
		require.NoError(b.t, json.Unmarshal(got.body, &page))
		for _, e := range page.Items {
			switch e.Outcome {
			case "duplicate":
				continue
			case "", "parked":
				left++
			}
			require.NotContains(b.t, out, e.Event, "an event is stored once")
			out[e.Event] = e.Outcome
		}
		if page.Next == "" {
			return out, left
		}
		cursor = "&cursor=" + page.Next
	}
}

// subjects returns the registered subjects of a tenant with everything that billing changes.
func (b *billingStory) subjects(of *storyTenant) string {
	b.t.Helper()
	return string(of.do(http.MethodGet, b.url()+"/v1/bulk/subjects", "", http.StatusOK).body)
}

// credits returns the balance of each customer who has one, and their sum. A refund that arrives
// before its purchase leaves no grant behind, and one that arrives after it leaves a grant of 0.
func (b *billingStory) credits(of *storyTenant, customers int) (balances map[string]int, sum int) {
	b.t.Helper()
	balances = map[string]int{}
	for n := range customers {
		user := fmt.Sprintf("user-%d", n)
		var grants struct{ Items []struct{ Balance int } }
		got := of.do(http.MethodGet, b.url()+"/v1/subjects/"+user+"/credits?limit=200", "", http.StatusOK)
		require.NoError(b.t, json.Unmarshal(got.body, &grants))
		for _, grant := range grants.Items {
			sum += grant.Balance
			if grant.Balance > 0 {
				balances[user] += grant.Balance
			}
		}
	}
	return balances, sum
}

// Events may arrive in any order, repeatedly and over several connections, while the server is
// killed again and again: every customer ends with the same plan, quantity, cycle and credits as if
// the events had arrived in order at a server that never failed, and no event is lost or stored
// twice.
func TestBillingEventsSurviveKills(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(2026, 11))
	b := &billingStory{t: t, s: newSettings(t).With(settings{"WEIR_ENCRYPTION_KEY": seal.NewKey(), "WEIR_WRITE_RATE": "0"})}
	b.server = start(t, b.s).AwaitReady()
	stdout, stderr, code := runServer(t, b.s, "operator-key", "create", "tests")
	require.Zero(t, code, stderr)
	operator := newClient(t, strings.TrimSpace(stdout))
	ordered, shuffled := b.tenant(operator, "ordered"), b.tenant(operator, "shuffled")
	events := storyEvents(random, *billingEvents)

	began := time.Now()
	lanes := make([][]storyEvent, storyEndpoints)
	for _, e := range events {
		lanes[e.endpoint] = append(lanes[e.endpoint], e)
	}
	b.send(ordered, lanes, nil)
	first, _ := b.settle(ordered, nil)
	inOrder := time.Since(began)

	mixed := append([]storyEvent{}, events...)
	for range len(events) / 10 {
		mixed = append(mixed, events[random.IntN(len(events))])
	}
	random.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	lanes = make([][]storyEvent, 8)
	for i, e := range mixed {
		lanes[i%len(lanes)] = append(lanes[i%len(lanes)], e)
	}
	// Half of the kills are while events arrive, the last of them after the last event. The others
	// are while the remaining events are processed, if they last so long.
	arriving := numbers(random, max(*billingKills/2, 1), len(mixed))
	arriving[len(arriving)-1] = len(mixed)
	processing := numbers(random, *billingKills-len(arriving), 200)
	random.Shuffle(len(processing), func(i, j int) { processing[i], processing[j] = processing[j], processing[i] })
	began = time.Now()
	b.send(shuffled, lanes, arriving)
	second, later := b.settle(shuffled, processing)
	t.Logf("%d events in order: %s; %d events shuffled, %d of them repeated, with %d kills while they arrived and %d later: %s",
		len(events), inOrder.Round(time.Second), len(mixed), len(mixed)-len(events), len(arriving), later, time.Since(began).Round(time.Second))

	want := b.subjects(ordered)
	require.Equal(t, want, b.subjects(shuffled))
	require.Len(t, first, len(events))
	require.Len(t, second, len(events))
	for id, outcome := range second {
		require.Contains(t, []string{"applied", "stale", "ignored"}, outcome, id)
	}
	for _, plan := range []string{"free", "pro", "scale"} {
		require.Contains(t, want, `"plan":"`+plan+`"`, "the events lead to every plan")
	}
	require.Greater(t, strings.Count(want, "\n"), len(events)/40)
	require.Regexp(t, `"multiplier":[2-5]`, want)
	require.Contains(t, want, `"cycle_anchor":"2023-07-2`)
	balances, sum := b.credits(ordered, storyCustomers(len(events)))
	require.Positive(t, sum)
	shuffledBalances, _ := b.credits(shuffled, storyCustomers(len(events)))
	require.Equal(t, balances, shuffledBalances)
}

// numbers returns different numbers from 1 to most, in ascending order.
func numbers(random *rand.Rand, count, most int) []int {
	out := random.Perm(most)[:count]
	for i := range out {
		out[i]++
	}
	slices.Sort(out)
	return out
}
