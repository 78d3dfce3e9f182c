package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"weir/internal/tenants"
)

// object is a JSON object.
type object = map[string]any

// demoEvent is an event of one of the demo's billing systems.
type demoEvent struct {
	id, kind string
	age      time.Duration // of the event, by the clock of the billing system
	content  object        // of Stripe: the object that the event is about
}

const demoDay = 24 * time.Hour

// stripeDemoEvents returns events of Stripe in the order in which they arrive: the payment of
// soylent has failed, acme's event is repeated, initech's arrive out of order, and nobody knows the
// price of pied-piper.
func stripeDemoEvents(now time.Time) []demoEvent {
	subscription := func(subject, status, price string, quantity int, anchor time.Duration) object {
		return object{
			"id": "sub_" + subject, "object": "subscription", "customer": "cus_" + subject, "status": status,
			"created": now.Add(-anchor).Unix(), "billing_cycle_anchor": now.Add(-anchor).Unix(), "metadata": object{"user_id": subject},
			"items": object{"data": []object{{"quantity": quantity, "price": object{"id": price}}}},
		}
	}
	const created, updated = "customer.subscription.created", "customer.subscription.updated"
	acme := demoEvent{"evt_1SXa0tAcmeCreated", created, 9 * demoDay, subscription("acme", "active", demoEnterprisePrice, 1, 9*demoDay)}
	return []demoEvent{
		acme,
		{"evt_1SXa1wSoylentCreated", created, 20 * demoDay, subscription("soylent", "active", demoProPrice, 1, 20*demoDay)},
		{"evt_1SXa2mInitechUpdated", updated, 2 * demoDay, subscription("initech", "active", demoProPrice, 1, 12*demoDay)},
		{"evt_1SXa2dInitechCreated", created, 12 * demoDay, subscription("initech", "active", demoProPrice, 1, 12*demoDay)},
		{"evt_1SXa3pNorthwindCreated", created, 5 * demoDay, subscription("northwind", "active", demoSeatsPrice, 5, 5*demoDay)},
		{"evt_1SXa4kNorthwindTrial", "customer.subscription.trial_will_end", 5 * demoDay, subscription("northwind", "active", demoSeatsPrice, 5, 5*demoDay)},
		{"evt_1SXa5rGlobexPack", "invoice.paid", demoDay, object{
			"id": "in_1SXa5rGlobex", "customer": "cus_globex", "metadata": object{"user_id": "globex"},
			"lines": object{"has_more": false, "data": []object{{
				"id": "il_1SXa5rGlobex", "amount": 1900, "quantity": 1,
				"pricing": object{"type": "price_details", "price_details": object{"price": demoPackPrice}},
			}}},
		}},
		acme,
		{"evt_1SXa6vPiedPiperCreated", created, time.Hour, subscription("pied-piper", "active", demoUnmappedPrice, 1, time.Hour)},
		{"evt_1SXa7zSoylentPastDue", updated, 2 * demoDay, subscription("soylent", "past_due", demoProPrice, 1, 20*demoDay)},
	}
}

// shopDemoEvents returns events of a system that names plans itself, one of which does not exist.
func shopDemoEvents(now time.Time) []demoEvent {
	in := func(d time.Duration) string { return now.Add(d).UTC().Truncate(time.Second).Format(time.RFC3339) }
	return []demoEvent{
		{id: "order-8812", kind: "subject.plan", content: object{"subject": "globex", "plan": "premium", "effective_at": in(-3 * time.Hour)}},
		{id: "order-8820", kind: "subject.plan", content: object{"subject": "umbrella", "plan": "pro", "effective_at": in(6 * demoDay)}},
	}
}

// demoClient sends requests to the demo.
type demoClient struct {
	url, key string
}

// do sends a request and decodes the answer, unless into is nil.
func (c *demoClient) do(ctx context.Context, method, path string, header http.Header, body []byte, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	if request.Header = header; header == nil {
		request.Header = http.Header{"Authorization": {"Bearer " + c.key}, "Content-Type": {"application/json"}}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		return fmt.Errorf("%s %s: unexpected status %s", method, path, response.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// demoEndpoint is what the API says about a billing endpoint.
type demoEndpoint struct {
	ID, Provider, Name string
	LastEventAt        *time.Time `json:"last_event_at"`
}

// sendDemoEvents sends the events of the demo's billing systems, signed, as those systems would,
// and waits until they are processed. It sends none to an endpoint that has events, so a later
// start repeats nothing. sent reports whether it sent any.
func (c *demoClient) sendDemoEvents(ctx context.Context, now time.Time) (sent bool, err error) {
	var list struct{ Items []demoEndpoint }
	if err := c.do(ctx, http.MethodGet, "/v1/billing/endpoints", nil, nil, &list); err != nil {
		return false, err
	}
	for _, e := range list.Items {
		var events []demoEvent
		switch {
		case e.LastEventAt != nil:
		case e.Provider == tenants.StripeProvider && e.Name == demoStripe:
			events = stripeDemoEvents(now)
		case e.Provider == tenants.GenericProvider && e.Name == demoShop:
			events = shopDemoEvents(now)
		}
		for _, event := range events {
			body, header, err := event.signed(e.Provider, now)
			if err != nil {
				return sent, err
			}
			if err := c.do(ctx, http.MethodPost, "/v1/webhooks/"+e.Provider+"/"+e.ID, header, body, nil); err != nil {
				return sent, fmt.Errorf("event %s: %w", event.id, err)
			}
			sent = true
		}
	}
	if !sent {
		return false, nil
	}
	return true, c.awaitOutcomes(ctx)
}

// awaitOutcomes returns when no event waits to be processed.
func (c *demoClient) awaitOutcomes(ctx context.Context) error {
	for {
		var list struct{ Items []struct{ Outcome *string } }
		if err := c.do(ctx, http.MethodGet, "/v1/billing/events?limit=100", nil, nil, &list); err != nil {
			return err
		}
		open := false
		for _, e := range list.Items {
			open = open || e.Outcome == nil
		}
		if !open {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// signed returns the webhook of an event, signed with the secret of the demo's endpoint.
func (e *demoEvent) signed(provider string, now time.Time) (body []byte, header http.Header, err error) {
	at := strconv.FormatInt(now.Unix(), 10)
	if provider == tenants.StripeProvider {
		body, err = json.Marshal(object{
			"object": "event", "id": e.id, "type": e.kind, "created": now.Add(-e.age).Unix(), "livemode": false,
			"api_version": "2026-03-25.dahlia", "data": object{"object": e.content},
		})
		mac := sign(demoStripeSecret, at+"."+string(body))
		return body, http.Header{"Stripe-Signature": {"t=" + at + ",v1=" + hex.EncodeToString(mac)}}, err
	}
	content := object{"type": e.kind}
	for name, value := range e.content {
		content[name] = value
	}
	if body, err = json.Marshal(content); err != nil {
		return nil, nil, err
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(demoShopSecret, "whsec_"))
	if err != nil {
		return nil, nil, err
	}
	signature := "v1," + base64.StdEncoding.EncodeToString(sign(string(secret), e.id+"."+at+"."+string(body)))
	return body, http.Header{"Webhook-Id": {e.id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature}}, nil
}

func sign(secret, text string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text)) // never fails
	return mac.Sum(nil)
}
