package browser

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// An owner connects Stripe on a page that waits for the first event, and shows it when it arrives.
func TestBilling(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	_, err := w.store.CreatePlan(t.Context(), w.actor, tenants.Plan{Slug: "pro", Name: "Pro"})
	require.NoError(t, err)
	p := w.as(tenants.Owner).open("/billing").sees("No provider connected").click("Connect a provider").check()
	p.fill("Signing secret", "whsec_browser").click("Create endpoint").sees("Endpoint created.").sees("Waiting for the first event…")
	p.inspect("billing-waiting")
	endpoints, _, err := w.store.BillingEndpoints(t.Context(), w.actor, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, endpoints, 1)

	w.subscribes(endpoints[0], "evt_browser", "ada", "price_pro")
	p.sees("Latest event").inspect("billing-endpoint")
}

// subscribes sends a signed event of Stripe: a subject subscribes to a price.
func (w *world) subscribes(e tenants.BillingEndpoint, id, subject, price string) {
	t := w.t
	t.Helper()
	now := strconv.FormatInt(time.Now().Unix(), 10)
	body := `{"object":"event","id":"` + id + `","type":"customer.subscription.created","created":` + now + `,"livemode":false,"data":{"object":{"id":"sub_` + id + `",
		"customer":"cus_` + subject + `","status":"active","metadata":{"user_id":"` + subject + `"},"items":{"data":[{"quantity":1,"price":{"id":"` + price + `"}}]}}}}`
	mac := hmac.New(sha256.New, []byte("whsec_browser"))
	mac.Write([]byte(now + "." + body))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.env["WEIR_URL"]+"/v1/webhooks/stripe/"+e.ID.String(), strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Stripe-Signature", "t="+now+",v1="+hex.EncodeToString(mac.Sum(nil)))
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}
