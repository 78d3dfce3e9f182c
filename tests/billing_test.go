package tests

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
	"weir/internal/testenv"
)

func stripeSignature(secret, at, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(at + "." + body))
	return hex.EncodeToString(mac.Sum(nil))
}

// The example of docs/billing.md connects a billing system and follows a customer. Each command
// runs in order, and has the status and the response that the page shows below it.
func TestBillingExample(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "billing.md"))
	require.NoError(t, err)
	_, walk, found := strings.Cut(string(page), "```sh\n. .dev/demo.env\n")
	require.True(t, found, "the example begins with the demo's variables")
	walk, rest, _ := strings.Cut(walk, "```")
	_, metered, found := strings.Cut(rest, "```sh\n. .dev/demo.env\n")
	require.True(t, found, "the example of metered usage begins with them, too")
	metered, _, _ = strings.Cut(metered, "```")

	dir := t.TempDir()
	startDemo(t, newSettings(t), dir)
	w := &walker{t: t, dir: dir, env: demoEnv(t, dir)}
	signed := 0
	id := regexp.MustCompile(`"id":"([0-9a-f-]{36})"`)
	for line := range strings.Lines(walk + metered) {
		// The walker does not support these lines of the shell.
		switch line = strings.TrimSpace(line); {
		case line == "ENDPOINT=... # the id":
			w.env["ENDPOINT"] = id.FindStringSubmatch(string(w.last.body))[1]
		case line == "NOW=$(date +%s)":
			w.env["NOW"] = strconv.FormatInt(time.Now().Unix(), 10)
		case strings.HasPrefix(line, "BODY='"):
			w.env["BODY"] = strings.ReplaceAll(strings.Trim(strings.TrimPrefix(line, "BODY="), "'"), "'$NOW'", w.env["NOW"])
		case line == `SIGNATURE=$(printf '%s' "$NOW.$BODY" | openssl dgst -sha256 -hmac whsec_example -r | cut -d' ' -f1)`:
			// The shell signs as the page says, and as Stripe does.
			script := "set -eu; " + line + `; printf %s "$SIGNATURE"`
			shell := exec.CommandContext(t.Context(), "sh", "-c", script)
			shell.Env = append(os.Environ(), "NOW="+w.env["NOW"], "BODY="+w.env["BODY"])
			signature, err := shell.Output()
			require.NoError(t, err, "openssl signs the event")
			w.env["SIGNATURE"] = string(signature)
			require.Equal(t, stripeSignature("whsec_example", w.env["NOW"], w.env["BODY"]), w.env["SIGNATURE"])
			signed++
		case strings.HasPrefix(line, "KEY=$("), strings.HasPrefix(line, `SIGNATURE=$(printf '%s' "msg_1.$NOW.$BODY" |`):
			name, _, _ := strings.Cut(line, "=")
			shell := exec.CommandContext(t.Context(), "sh", "-c", "set -eu; "+line+`; printf %s "$`+name+`"`)
			shell.Env = append(os.Environ(), "NOW="+w.env["NOW"], "BODY="+w.env["BODY"], "KEY="+w.env["KEY"])
			value, err := shell.Output()
			require.NoError(t, err, line)
			w.env[name] = string(value)
			if name == "SIGNATURE" {
				signed++
			}
		default:
			w.line(strings.ReplaceAll(line, `-d "$BODY"`, `-d '`+w.env["BODY"]+`'`))
		}
	}
	require.Empty(t, w.last.line, "a status for the last command")
	require.Equal(t, 19, w.ran)
	require.Equal(t, 3, signed)
}

// A customer signs up, pays, is allowed by another instance, upgrades, fails to pay, and leaves.
// Each time the limits change on every instance, although a webhook reaches only one of them.
func TestBillingStory(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_ENCRYPTION_KEY": seal.NewKey()})
	first, second := start(t, s).AwaitReady(), start(t, s).AwaitReady()
	tenant := newTenant(t, s, first)
	tenant.putRule("api", `{"resource":"api","algorithm":"fixed_window_first_hit","limit":2,"window":"1d"}`, first, second)
	for plan, limit := range map[string]string{"free": "2", "pro": "5", "scale": "9"} {
		tenant.do(http.MethodPut, first.URL()+"/v1/plans/"+plan, `{"limits":{"api":{"limit":`+limit+`}}}`, http.StatusCreated)
	}
	tenant.do(http.MethodPatch, first.URL()+"/v1/plans/free", `{"default":true}`, http.StatusOK)
	var endpoint struct {
		ID  string `json:"id"`
		URL string `json:"url"`
	}
	got := tenant.do(http.MethodPost, first.URL()+"/v1/billing/endpoints", `{"provider":"stripe","signing_secrets":["whsec_story"],
		"subject_from":"metadata.user","grace_days":0,"fallback_plan":"free"}`, http.StatusCreated)
	require.NoError(t, json.Unmarshal(got.body, &endpoint))
	require.Equal(t, first.URL()+"/v1/webhooks/stripe/"+endpoint.ID, endpoint.URL)
	tenant.do(http.MethodPut, first.URL()+"/v1/billing/prices/price_pro", `{"plan":"pro"}`, http.StatusCreated)
	tenant.do(http.MethodPut, first.URL()+"/v1/billing/prices/price_scale", `{"plan":"scale","multiply":true}`, http.StatusCreated)

	check := func(cost string) (status int, limit int64) {
		t.Helper()
		answer, d, err := tenant.check(second.URL()+"/v1/check", `{"subject":"ada","resource":"api","cost":`+cost+`}`)
		require.NoError(t, err)
		return answer.status, d.Limit
	}
	limitIs := func(want int64) {
		t.Helper()
		require.Eventually(t, func() bool { _, limit := check("0"); return limit == want }, patience, tick)
	}
	events := 0
	send := func(typ, object string) {
		t.Helper()
		events++
		at := time.Now().Add(time.Duration(events) * time.Second).Unix() // one event per second, by the provider's clock
		body := `{"object":"event","id":"evt_` + strconv.Itoa(events) + `","type":"` + typ + `","created":` + strconv.FormatInt(at, 10) + `,"livemode":false,"data":{"object":` + object + `}}`
		now := strconv.FormatInt(time.Now().Unix(), 10)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint.URL, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Stripe-Signature", "t="+now+",v1="+stripeSignature("whsec_story", now, body))
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	subscribed := func(status, price, quantity string) string {
		return `{"id":"sub_1","customer":"cus_1","status":"` + status + `","metadata":{"user":"ada"},"items":{"data":[{"quantity":` + quantity + `,"price":{"id":"` + price + `"}}]}}`
	}

	status, _ := check("2")
	require.Equal(t, http.StatusOK, status)
	status, _ = check("1")
	require.Equal(t, http.StatusTooManyRequests, status, "the free quota is used up")
	send("customer.subscription.created", subscribed("active", "price_pro", "1"))
	limitIs(5)
	status, _ = check("3")
	require.Equal(t, http.StatusOK, status, "usage so far is kept, and the new limit counts")
	status, _ = check("1")
	require.Equal(t, http.StatusTooManyRequests, status)
	send("customer.subscription.updated", subscribed("active", "price_scale", "3"))
	limitIs(27)
	send("invoice.payment_failed", `{"customer":"cus_1","subscription":"sub_1"}`) // there is no grace period
	limitIs(2)
	send("invoice.paid", `{"customer":"cus_1","subscription":"sub_1"}`)
	limitIs(27)
	send("customer.subscription.deleted", subscribed("canceled", "price_scale", "3"))
	limitIs(2)
	require.Contains(t, first.Metrics(), `weir_webhooks_total{provider="stripe",result="stored"} 5`)

	// The customer buys a pack of credits, spends some of it, and gets the money back.
	tenant.do(http.MethodPut, first.URL()+"/v1/billing/prices/price_pack", `{"credits":{"rule":"api","units":10}}`, http.StatusCreated)
	status, _ = check("1")
	require.Equal(t, http.StatusTooManyRequests, status, "the quota is still used up")
	bought := `{"id":"in_1","customer":"cus_1","payment_intent":"pi_1","lines":{"data":[{"id":"il_1","quantity":1,"price":{"id":"price_pack"}}]}}`
	send("invoice.paid", bought)
	send("invoice.payment_succeeded", bought)
	var spent answer
	require.Eventually(t, func() bool {
		got, _, err := tenant.check(second.URL()+"/v1/check", `{"subject":"ada","resource":"api","cost":4}`)
		spent = got
		return err == nil && got.status == http.StatusOK
	}, patience, tick)
	require.Contains(t, string(spent.body), `"credits_spent":4,"credits_remaining":6`)
	require.Equal(t, "api", spent.header.Get("Weir-Credits"))
	send("charge.refunded", `{"id":"ch_1","payment_intent":"pi_1","customer":"cus_1","refunded":true}`)
	require.Eventually(t, func() bool {
		got := tenant.do(http.MethodGet, first.URL()+"/v1/subjects/ada/credits", "", http.StatusOK)
		return strings.Contains(string(got.body), `"units":10,"spent":4,"balance":0`)
	}, patience, tick, "what is left was taken back, and what was spent stays spent")
	require.Eventually(t, func() bool { status, _ := check("1"); return status == http.StatusTooManyRequests }, patience, tick)
}
