package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"weir/bench/load"
)

const (
	endpointSecret = "whsec_bench"
	// encryptionKey is that of all instances, which billing endpoints need.
	encryptionKey = "YmVuY2hiZW5jaGJlbmNoYmVuY2hiZW5jaGJlbmNoYjE="
	floodEvents   = 10_000 // different ones, which are sent again and again
)

// createEndpoint creates an endpoint of a tenant for events of Stripe, and returns its path.
func (s *stage) createEndpoint(ctx context.Context, t *tenant) (path string, err error) {
	api := newAdmin(s.servers[weirName].http)
	defer api.client.CloseIdleConnections()
	var created struct{ ID string }
	body := map[string]any{"provider": "stripe", "name": "Stripe", "signing_secrets": []string{endpointSecret}}
	if _, err := api.post(ctx, t.key, "/v1/billing/endpoints", body, &created); err != nil {
		return "", fmt.Errorf("tenant %s: %w", t.slug, err)
	}
	return "/v1/webhooks/stripe/" + created.ID, nil
}

// billingEvents is events for an endpoint, signed with the secret and with the current time: they
// are valid for five minutes.
func billingEvents(path, secret string) *load.Traffic {
	now := time.Now().Unix()
	requests := make([]load.Request, floodEvents)
	for i := range requests {
		body := fmt.Appendf(nil, `{"object":"event","id":"evt_%d_%d","type":"customer.subscription.updated","created":%d,"livemode":false,`+
			`"data":{"object":{"id":"sub_%d","customer":"cus_%d","status":"active","created":%d,"items":{"data":[{"quantity":1,"price":{"id":"price_bench"}}]}}}}`,
			now, i, now, i, i, now)
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%d.%s", now, body)
		signature := hex.EncodeToString(mac.Sum(nil))
		requests[i] = load.Request{Path: path, Body: body, Head: fmt.Sprintf("Stripe-Signature: t=%d,v1=%s\r\n", now, signature)}
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}
