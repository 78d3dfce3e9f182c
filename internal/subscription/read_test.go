package subscription_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85/webhook"

	"weir/internal/subscription"
)

const stripeBody = `{"object":"event","id":"evt_1","type":"customer.subscription.updated","created":1700000000,"livemode":false,"api_version":"2026-03-25.dahlia",
"data":{"object":{"id":"sub_1","object":"subscription","customer":"cus_1","status":"active","created":1690000000,"billing_cycle_anchor":1690000001,
"metadata":{"user":"ada"},"items":{"data":[{"quantity":4,"current_period_start":1699000000,"price":{"id":"price_pro","product":"prod_pro"}}]}},
"previous_attributes":{"status":"trialing"}}}`

func sign(body, secret string, at time.Time) string {
	return webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at}).Header
}

// A client that could forge, replay or change an event could assign plans for free.
func TestStripeSignatures(t *testing.T) {
	t.Parallel()
	now := time.Now()
	good := sign(stripeBody, "whsec_new", now)
	for name, c := range map[string]struct {
		body, header string
		want         error
	}{
		"signed with the first secret":  {stripeBody, good, nil},
		"signed with the second secret": {stripeBody, sign(stripeBody, "whsec_old", now), nil},
		"one signature of several":      {stripeBody, good + ",v1=" + strings.Repeat("0", 64), nil},
		"almost five minutes old":       {stripeBody, sign(stripeBody, "whsec_new", now.Add(-290*time.Second)), nil},
		"none":                          {stripeBody, "", subscription.ErrBadSignature},
		"garbage":                       {stripeBody, "hello", subscription.ErrBadSignature},
		"another secret":                {stripeBody, sign(stripeBody, "whsec_wrong", now), subscription.ErrBadSignature},
		"another scheme only":           {stripeBody, strings.ReplaceAll(good, "v1=", "v0="), subscription.ErrBadSignature},
		"another body":                  {stripeBody + " ", good, subscription.ErrBadSignature},
		"old":                           {stripeBody, sign(stripeBody, "whsec_new", now.Add(-301*time.Second)), subscription.ErrOldSignature},
		"of the future":                 {stripeBody, sign(stripeBody, "whsec_new", now.Add(310*time.Second)), subscription.ErrOldSignature},
		"signed, and no JSON":           {"{", sign("{", "whsec_new", now), subscription.ErrMalformed},
		"signed, and no event":          {`{"object":"event"}`, sign(`{"object":"event"}`, "whsec_new", now), subscription.ErrMalformed},
		"signed, with a NUL": {strings.Replace(stripeBody, "ada", `a\u0000`, 1), sign(strings.Replace(stripeBody, "ada", `a\u0000`, 1), "whsec_new", now),
			subscription.ErrMalformed},
	} {
		e, err := subscription.ReadStripe([]byte(c.body), c.header, []string{"whsec_new", "whsec_old"}, now)
		if c.want != nil {
			require.ErrorIs(t, err, c.want, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, "evt_1", e.ID, name)
	}
}

func TestReadStripe(t *testing.T) {
	t.Parallel()
	e, err := subscription.ParseStripe([]byte(stripeBody))
	require.NoError(t, err)
	require.Equal(t, subscription.Changed, e.Kind)
	require.Equal(t, "cus_1", e.Customer)
	require.Equal(t, "sub_1", e.Subscription)
	require.False(t, *e.Live)
	require.Equal(t, &subscription.Snapshot{
		At: 1700000000, Rank: 1, Event: "evt_1", Status: subscription.Active, Customer: "cus_1", Created: 1690000000, Anchor: 1690000001,
		Items:    []subscription.Item{{Price: "price_pro", Product: "prod_pro", Quantity: 4, Anchor: 1699000000}},
		Metadata: map[string]string{"user": "ada"}, Was: "trialing\nprice_pro",
	}, e.Snapshot)
}

// Events of other versions of the API are parsed, or refused with a reason. None is misread.
func TestVersionsAndTypes(t *testing.T) {
	t.Parallel()
	event := func(typ, object string) string {
		return `{"object":"event","id":"evt_1","type":"` + typ + `","created":1700000000,"api_version":"2019-12-03","data":{"object":` + object + `}}`
	}
	for name, c := range map[string]struct {
		body string
		kind subscription.Kind
		why  string
	}{
		"a subscription of 2019, with plans and a period of its own": {event("customer.subscription.created",
			`{"id":"sub_1","customer":"cus_1","status":"active","current_period_start":1690000000,"items":{"data":[{"plan":{"id":"plan_1","product":"prod_1"},"quantity":1}]}}`), subscription.Changed, ""},
		"a subscription of before items": {event("customer.subscription.created",
			`{"id":"sub_1","customer":"cus_1","status":"active","plan":{"id":"plan_1"},"quantity":2}`), subscription.Changed, ""},
		"an expanded customer": {event("customer.subscription.created",
			`{"id":"sub_1","customer":{"id":"cus_1"},"status":"active","items":{"data":[{"price":{"id":"p","product":{"id":"prod"}}}]}}`), subscription.Changed, ""},
		"a deleted one that says active": {event("customer.subscription.deleted",
			`{"id":"sub_1","customer":"cus_1","status":"active","items":{"data":[{"price":{"id":"p"}}]}}`), subscription.Changed, ""},
		"a paused one": {event("customer.subscription.paused",
			`{"id":"sub_1","customer":"cus_1","status":"paused","items":{"data":[{"price":{"id":"p"}}]}}`), subscription.Changed, ""},
		"a resumed one": {event("customer.subscription.resumed",
			`{"id":"sub_1","customer":"cus_1","status":"active","items":{"data":[{"price":{"id":"p"}}]}}`), subscription.Changed, ""},
		"a pending update that was applied": {event("customer.subscription.pending_update_applied",
			`{"id":"sub_1","customer":"cus_1","status":"active","items":{"data":[{"price":{"id":"p"}}]}}`), subscription.Changed, ""},
		"a pending update that expired": {event("customer.subscription.pending_update_expired",
			`{"id":"sub_1","customer":"cus_1","status":"active","pending_update":null,"items":{"data":[{"price":{"id":"p"}}]}}`), subscription.Changed, ""},
		"a status of the future": {event("customer.subscription.updated",
			`{"id":"sub_1","customer":"cus_1","status":"dreaming","items":{"data":[{"price":{"id":"p"}}]}}`), subscription.Unreadable, `"dreaming" is unknown (API version 2019-12-03`},
		"no items":             {event("customer.subscription.updated", `{"id":"sub_1","customer":"cus_1","status":"active"}`), subscription.Unreadable, "no items"},
		"a list for an object": {event("customer.subscription.updated", `{"id":["sub_1"]}`), subscription.Unreadable, "not of a known form: the type of id is array (API"},
		"a text for a quantity": {event("customer.subscription.updated", `{"id":"sub_1","items":{"data":[{"quantity":"2"}]}}`), subscription.Unreadable,
			"not of a known form: the type of items.data.quantity is string (API"},
		"an invoice of 2019":              {event("invoice.payment_failed", `{"customer":"cus_1","subscription":"sub_1"}`), subscription.PaymentFailed, ""},
		"an invoice of today":             {event("invoice.paid", `{"customer":"cus_1","parent":{"subscription_details":{"subscription":"sub_1"}}}`), subscription.PaymentMade, ""},
		"an invoice of no subscription":   {event("invoice.paid", `{"customer":"cus_1"}`), subscription.Ignored, "no subscription"},
		"a customer":                      {event("customer.updated", `{"id":"cus_1","metadata":{"user":"ada"}}`), subscription.Customer, ""},
		"a checkout":                      {event("checkout.session.completed", `{"customer":"cus_1","client_reference_id":"ada"}`), subscription.Linked, ""},
		"a checkout of a guest":           {event("checkout.session.completed", `{"customer":null,"client_reference_id":"ada"}`), subscription.Ignored, "no customer"},
		"a trial that will end":           {event("customer.subscription.trial_will_end", `{"id":"sub_1"}`), subscription.Ignored, "trial ends soon"},
		"a schedule":                      {event("subscription_schedule.updated", `{"id":"sub_sched_1"}`), subscription.Ignored, "schedule"},
		"something that has nothing here": {event("payout.paid", `{"id":"po_1"}`), subscription.Ignored, "not used"},
	} {
		e, err := subscription.ParseStripe([]byte(c.body))
		require.NoError(t, err, name)
		require.Equal(t, c.kind, e.Kind, "%s: %s", name, e.Why)
		require.Contains(t, e.Why, c.why, name)
		if strings.Contains(name, "deleted") {
			require.Equal(t, subscription.Canceled, e.Snapshot.Status)
		}
		if strings.Contains(name, "paused") {
			require.Equal(t, subscription.Paused, e.Snapshot.Status)
		}
	}
}

func TestGenericSignatures(t *testing.T) {
	t.Parallel()
	const secret, other = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	const body = `{"type":"subject.plan","subject":"ada","plan":"pro","effective_at":"2026-01-31T12:00:00Z","cycle_anchor":"2026-01-15T00:00:00Z","quantity":5}`
	named := func(id, secret, body string, at time.Time) http.Header {
		hook, err := standardwebhooks.NewWebhook(secret)
		require.NoError(t, err)
		signature, err := hook.Sign(id, at, []byte(body))
		require.NoError(t, err)
		return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)}, "Webhook-Signature": {signature}}
	}
	header := func(secret, body string, at time.Time) http.Header { return named("msg_1", secret, body, at) }
	now := time.Now()
	e, err := subscription.ReadGeneric([]byte(body), header(other, body, now), []string{secret, other})
	require.NoError(t, err)
	require.Equal(t, subscription.Changed, e.Kind)
	require.Equal(t, "ada", e.Subject)
	require.Equal(t, "pro", e.Snapshot.Plan)
	require.Equal(t, "2026-01-31T12:00:00Z", e.At.Format(time.RFC3339))
	standing := (&subscription.State{Newest: e.Snapshot}).Standing(now, 0, tiers)
	require.Equal(t, int64(5), standing.Multiplier)
	require.Equal(t, "2026-01-15T00:00:00Z", standing.Anchor.Format(time.RFC3339))

	for name, c := range map[string]struct {
		header http.Header
		body   string
		want   error
	}{
		"no header":             {http.Header{}, body, subscription.ErrBadSignature},
		"another body":          {header(secret, body, now), body + " ", subscription.ErrBadSignature},
		"old":                   {header(secret, body, now.Add(-6*time.Minute)), body, subscription.ErrOldSignature},
		"of the future":         {header(secret, body, now.Add(6*time.Minute)), body, subscription.ErrOldSignature},
		"two documents":         {header(secret, body+body, now), body + body, subscription.ErrMalformed},
		"a numeric type":        {header(secret, `{"type":7}`, now), `{"type":7}`, subscription.ErrMalformed},
		"no type":               {header(secret, `{}`, now), `{}`, subscription.ErrMalformed},
		"not even an object":    {header(secret, `[]`, now), `[]`, subscription.ErrMalformed},
		"an id that is no text": {named("\xe9\xff", secret, body, now), body, subscription.ErrMalformed},
	} {
		_, err := subscription.ReadGeneric([]byte(c.body), c.header, []string{secret, other})
		require.ErrorIs(t, err, c.want, name)
	}
}

// Nothing in an event is corrected silently: every field that is out of range, unknown or there
// twice is named. A stored event with such a field has no effect.
func TestGenericFields(t *testing.T) {
	t.Parallel()
	hook, err := standardwebhooks.NewWebhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	plan := func(more string) string { return `{"type":"subject.plan","subject":"ada","plan":"pro"` + more + `}` }
	credits := func(more string) string {
		return `{"type":"subject.credits","subject":"ada","rule":"api","units":5` + more + `}`
	}
	for body, want := range map[string]string{
		plan(`,"quantity":0`):                                                         "quantity must be a whole number from 1 to 1000000",
		plan(`,"quantity":-3`):                                                        "quantity must be a whole number from 1 to 1000000",
		plan(`,"quantity":1000000000000`):                                             "quantity must be a whole number from 1 to 1000000",
		plan(`,"quantity":2.5`):                                                       "quantity must be a whole number",
		plan(`,"quantity":"2"`):                                                       "quantity must be a whole number",
		plan(`,"quantity":2,"quantity":3`):                                            "quantity is a duplicate",
		plan(`,"effective_at":"soon"`):                                                "effective_at must be a time from 1970-01-01T00:00:00Z",
		plan(`,"effective_at":"1969-01-01T00:00:00Z"`):                                "effective_at must be a time from 1970-01-01T00:00:00Z",
		plan(`,"cycle_anchor":5`):                                                     "cycle_anchor must be a time from 0001-01-01T00:00:00Z",
		plan(`,"seats":2`):                                                            "seats is unknown; the fields of this event are cycle_anchor, effective_at, plan, quantity, subject, type",
		plan(`,"Quantity":2`):                                                         "Quantity is unknown",
		plan(`,"units":2`):                                                            "units is unknown",
		`{"type":"subject.plan","plan":"pro"}`:                                        "subject is required",
		`{"type":"subject.plan","subject":"ada"}`:                                     "plan is required",
		`{"type":"subject.plan","subject":"a\u0007","plan":"pro"}`:                    "subject must not contain control characters",
		`{"type":"subject.plan","subject":"..","plan":"pro"}`:                         "subject must not be . or ..",
		`{"type":"subject.credits","subject":".","rule":"api","units":5}`:             "subject must not be . or ..",
		`{"type":"subject.plan","subject":"ada","plan":""}`:                           "plan must be a text of 1 to 63 bytes",
		`{"type":"subject.credits","subject":"ada","rule":"api"}`:                     "units is required",
		`{"type":"subject.credits","subject":"ada","rule":"api","units":0}`:           "units must be a whole number from 1 to 1000000000000000",
		`{"type":"subject.credits","subject":"ada","rule":"api","units":1.5}`:         "units must be a whole number",
		credits(`,"expires_at":"never"`):                                              "expires_at must be a time",
		credits(`,"reference":"` + strings.Repeat("x", 257) + `"`):                    "reference must be a text of 1 to 256 bytes",
		credits(`,"plan":"pro"`):                                                      "plan is unknown",
		`{"type":"subject.plan","subject":"ada","plan":"pro","quantity":0,"seats":2}`: "quantity must be a whole number from 1 to 1000000; seats is unknown",
	} {
		now := time.Now()
		signature, err := hook.Sign("msg_1", now, []byte(body))
		require.NoError(t, err)
		_, err = subscription.ReadGeneric([]byte(body), http.Header{
			"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {strconv.FormatInt(now.Unix(), 10)}, "Webhook-Signature": {signature},
		}, []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
		var wrong *subscription.InvalidFields
		require.ErrorAs(t, err, &wrong, body)
		require.Contains(t, wrong.Error(), want, body)

		e, err := subscription.ParseGeneric([]byte(body), "msg_1", now, now)
		require.NoError(t, err, body)
		require.Equal(t, subscription.Unreadable, e.Kind, body)
		require.Contains(t, e.Why, want, body)
	}
	for _, body := range []string{plan(""), plan(`,"quantity":null`), plan(`,"quantity":1000000`), credits(""), `{"type":"other","seats":2}`} {
		e, err := subscription.ParseGeneric([]byte(body), "msg_1", epoch, epoch)
		require.NoError(t, err)
		require.NotEqual(t, subscription.Unreadable, e.Kind, "%s: %s", body, e.Why)
	}
}

// No body, signed or not, causes a panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(stripeBody))
	f.Add([]byte(`{"object":"event","id":"e","type":"invoice.paid","created":1,"data":{"object":{"customer":{"id":1}}}}`))
	f.Add([]byte(`{"type":"subject.plan","subject":"s","plan":"p","quantity":-1}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		for _, parse := range []func() (subscription.Event, error){
			func() (subscription.Event, error) { return subscription.ParseStripe(body) },
			func() (subscription.Event, error) { return subscription.ParseGeneric(body, "id", epoch, epoch) },
		} {
			if e, err := parse(); err == nil && e.Kind == subscription.Changed {
				var s subscription.State
				s.Merge(&e)
				s.Standing(epoch, time.Hour, tiers)
			}
		}
	})
}

// Only a signature over the very bytes of the body is accepted, and no header causes a panic.
func FuzzSignatures(f *testing.F) {
	const key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	mac := func(text string) string {
		h := hmac.New(sha256.New, []byte(key))
		h.Write([]byte(text))
		return hex.EncodeToString(h.Sum(nil))
	}
	at := strconv.FormatInt(epoch.Unix(), 10)
	f.Add([]byte(stripeBody), "t="+at+",v1="+mac(at+"."+stripeBody))
	f.Add([]byte(stripeBody), "t="+at+",v1=,v1=00,v0="+mac(at+"."+stripeBody))
	f.Add([]byte(`{"type":"subject.plan","subject":"s","plan":"p"}`), "v1,"+key)
	f.Add([]byte("{}"), "t=99999999999999999999,v1=zz")
	f.Fuzz(func(t *testing.T, body []byte, header string) {
		signed := strings.Contains(strings.ToLower(header), mac(at+"."+string(body)))
		if _, err := subscription.ReadStripe(body, header, []string{key}, epoch); err == nil && !signed {
			t.Fatalf("accepted %q for %q", header, body)
		}
		h := http.Header{"Webhook-Id": {header}, "Webhook-Timestamp": {at}, "Webhook-Signature": {header}}
		if _, err := subscription.ReadGeneric(body, h, []string{key}); err == nil {
			t.Fatalf("accepted %q for %q", header, body)
		}
	})
}

// An event of the generic webhook takes effect at most 400 days after it was sent, because one that
// was not applied is deleted after that. One that was stored by an earlier release stays readable.
func TestGenericEventsFarAhead(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	hook, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	now := time.Now().Truncate(time.Second)
	read := func(at time.Time) (string, error) {
		body := `{"type":"subject.plan","subject":"ada","plan":"pro","effective_at":"` + at.Format(time.RFC3339Nano) + `"}`
		signature, err := hook.Sign("msg_1", now, []byte(body))
		require.NoError(t, err)
		_, err = subscription.ReadGeneric([]byte(body), http.Header{
			"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {strconv.FormatInt(now.Unix(), 10)}, "Webhook-Signature": {signature},
		}, []string{secret})
		return body, err
	}
	last := now.Add(400 * 24 * time.Hour)
	_, err = read(last)
	require.NoError(t, err)
	for _, at := range []time.Time{last.Add(time.Second), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} {
		body, err := read(at)
		var wrong *subscription.InvalidFields
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, "effective_at", wrong.Fields[0].Field)
		require.Contains(t, wrong.Error(), "to "+last.UTC().Format(time.RFC3339))
		e, err := subscription.ParseGeneric([]byte(body), "msg_1", now, now)
		require.NoError(t, err)
		require.Equal(t, subscription.Changed, e.Kind, e.Why)
	}
}
