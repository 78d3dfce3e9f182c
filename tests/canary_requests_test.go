package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// useTheDashboard joins, signs in and out, mistypes, recovers the password and changes it. It
// returns a browser that is signed in.
func (c *canaryRun) useTheDashboard() *browser {
	c.t.Helper()
	first, wrong := c.secretText("first password", "Pass word "), c.secretText("wrong password", "Wrong word ")
	b := &browser{c: c, cookies: map[string]string{}}
	b.post("/invitation/"+c.mailed("/invitation/", "invitation"), http.StatusSeeOther, "password", first)
	b.post("/logout", http.StatusSeeOther)
	b.post("/login", http.StatusUnauthorized, "email", "ada@example.com", "password", wrong)
	b.post("/login", http.StatusUnauthorized, "email", "nobody@example.com", "password", first)
	b.post("/login", http.StatusSeeOther, "email", "ada@example.com", "password", first)

	second := c.secretText("second password", "Other word ")
	b.post("/account/password", http.StatusSeeOther, "current", first, "password", second)
	b.post("/account/email", http.StatusSeeOther, "current", second, "email", "ada2@example.com")
	c.mailed("/email/", "link to change the email")
	b.post("/forgot", http.StatusOK, "email", "ada@example.com")
	third := c.secretText("third password", "Third word ")
	b.post("/reset/"+c.mailed("/reset/", "password link"), http.StatusSeeOther, "password", third)
	b.post("/login", http.StatusSeeOther, "email", "ada@example.com", "password", third)
	c.create("/v1/keys", `{"name":"on its way","scopes":["read"]}`, "secret", "key that expires")
	b.post("/signup", http.StatusOK, "tenant", "New", "email", "grace@example.com")
	c.mailed("/signup/", "link to sign up")
	c.command("sign-up link", "signup-link", "olga@example.com")
	c.command("password link of the operator", "password-link", "ada@example.com")
	c.command("operator link", "operator-link", "olga@example.com")
	return b
}

// misuseKeys sends secrets where they do not belong. The answers go to the client that has the
// secret anyway, but nothing may be logged or stored.
func (c *canaryRun) misuseKeys() {
	c.t.Helper()
	base, key := c.i.URL(), c.tenant.key
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	require.NoError(c.t, json.Unmarshal(c.tenant.do(http.MethodGet, base+"/openapi.json", "", http.StatusOK).body, &document))
	require.Greater(c.t, len(document.Paths), 50)
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	client := &http.Client{Timeout: patience}
	send := func(method, target, body string, header http.Header) {
		request, err := http.NewRequestWithContext(c.t.Context(), method, target, strings.NewReader(body))
		require.NoError(c.t, err)
		request.Header = header
		response, err := client.Do(request)
		require.NoError(c.t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(c.t, err)
		require.NoError(c.t, response.Body.Close())
		require.NotEqual(c.t, http.StatusInternalServerError, response.StatusCode, "%s %s", method, target)
	}
	for path, operations := range document.Paths {
		for method := range operations {
			method = strings.ToUpper(method)
			if len(method) > 7 || method == "PARAMETERS" {
				continue
			}
			known := base + parameter.ReplaceAllString(path, "missing") + "?"
			if strings.HasSuffix(path, "/stream") {
				known += "for=1s&" // it would last an hour
			}
			send(method, known+"key="+key, "", http.Header{"Cookie": {"key=" + key}, "X-Api-Key": {key}})
			send(method, known, `{"`+key+`":"`+key+`"}`, http.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/json"}})
			send(method, known, `{"`+key, http.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/json"}})
			if method == http.MethodGet {
				send(method, base+parameter.ReplaceAllString(path, key)+"?"+key+"=1", "", http.Header{"Authorization": {"Bearer " + key}})
			}
		}
	}
	for _, header := range []string{"Basic " + key, "Bearer " + key + "x", "Bearer  " + key, key} {
		send(http.MethodPost, base+"/v1/check", `{"subject":"a"}`, http.Header{"Authorization": {header}, "Content-Type": {"application/json"}})
	}
	send(http.MethodGet, base+"/login?password="+key, "", http.Header{"Cookie": {"__Host-weir=" + key}})
	send(http.MethodGet, base+"/reset/"+key, "", http.Header{})
	c.raw("GET /" + key + " HTTP/9.9\r\nAuthorization: Bearer " + key + "\r\n\r\n")
	c.raw("POST /v1/check HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + key + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + key)
	c.raw("POST /v1/check HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + key + "\r\nContent-Length: 500\r\n\r\n" + key)
	c.raw("GET / HTTP/1.1\r\nHost: " + key + "\r\n" + key + "\x00: 1\r\n\r\n")
	c.raw("GET / HTTP/1.1\r\nHost: a\r\nX-Long: " + strings.Repeat(key, 2000) + "\r\n\r\n")
}

// askTheGateway decides by a route whose subject is a credential of a customer.
func (c *canaryRun) askTheGateway() {
	c.t.Helper()
	credential, cookie := c.secretText("credential of a customer", "cust_"), c.secretText("session cookie of a customer", "sess_")
	c.tenant.do(http.MethodPut, c.i.URL()+"/v1/routes/edge", `{"subject":["header:Authorization","cookie:session"],"resources":[{"match":"GET /{rest...}","resource":"orders"}]}`, http.StatusCreated)
	for _, header := range []http.Header{
		{"Authorization": {"Bearer " + credential}}, {"Cookie": {"session=" + cookie}}, {"Authorization": {"Basic " + credential}},
	} {
		require.Eventually(c.t, func() bool {
			request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.i.URL()+"/v1/authorize/edge", http.NoBody)
			require.NoError(c.t, err)
			request.Header = header.Clone()
			request.Header.Set("Weir-Key", c.tenant.key)
			request.Header.Set("X-Forwarded-Method", "GET")
			request.Header.Set("X-Forwarded-Uri", "/orders/7")
			response, err := http.DefaultClient.Do(request)
			require.NoError(c.t, err)
			body, err := io.ReadAll(response.Body)
			require.NoError(c.t, err)
			require.NoError(c.t, response.Body.Close())
			c.said.Write(body)
			return strings.Contains(string(body), "sha256:") || response.Header.Get("Weir-Subject") != "" || response.StatusCode == http.StatusOK
		}, patience, tick, "the route is not in force")
	}
}

// searchAll searches everything that can be read from outside after the run, except the logs.
func (c *canaryRun) searchAll(b *browser) {
	c.t.Helper()
	base := c.i.URL()
	c.notices.await(c.t, "security.event", "sign_in.failed")
	for _, path := range []string{
		"/v1/keys", "/v1/members", "/v1/audit", "/v1/audit?format=csv", "/v1/security-events", "/v1/security-events?format=csv",
		"/v1/security-events?format=jsonl", "/v1/config", "/v1/rules", "/v1/routes", "/v1/subjects", "/v1/billing/prices",
		"/v1/subjects/user_42/portal-links", "/v1/bulk/subjects", "/v1/billing/endpoints", "/v1/billing/events", "/v1/tenant",
		"/v1/notification-endpoints", "/v1/notification-deliveries", "/v1/usage", "/v1/usage/metered?open=true",
	} {
		got, err := c.tenant.tryWith(http.MethodGet, base+path, "", http.Header{})
		require.NoError(c.t, err)
		require.Equal(c.t, http.StatusOK, got.status, "%s: %s", path, got.body)
		c.search(path, string(got.body))
	}
	source, err := os.ReadFile(filepath.Join(testenv.Root(), "internal", "dashboard", "dashboard.go"))
	require.NoError(c.t, err)
	pages := regexp.MustCompile(`r\.Get\("(/[a-z/-]*)", d\.(?:page|person|open)`).FindAllStringSubmatch(string(source), -1)
	require.Greater(c.t, len(pages), 20)
	for _, page := range pages {
		if strings.HasSuffix(page[1], "/wait") {
			continue // it answers when an event comes
		}
		_, body := b.send(http.MethodGet, page[1], "")
		c.search("the page "+page[1], body+"(end)")
	}
	for _, path := range []string{"/metrics", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1"} {
		response, err := http.Get(c.i.InternalURL() + path)
		require.NoError(c.t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(c.t, err)
		require.NoError(c.t, response.Body.Close())
		c.search(path, string(body))
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.i.Pid()))
	require.NoError(c.t, err)
	c.search("the process list", string(line))

	c.search("the database", dumpDatabase(c.t, c.owner))
	options, err := redis.ParseURL(c.settings["WEIR_REDIS_URL"])
	require.NoError(c.t, err)
	client := redis.NewClient(options)
	defer client.Close()
	c.search("Redis", redisContents(c.t, client))
	content, err := os.ReadFile(c.settings["WEIR_SNAPSHOT_FILE"])
	require.NoError(c.t, err)
	c.search("the snapshot file", string(content))
	c.search("mails", c.mails.all(), "invitation", "password link", "link to", "sign-up link", "operator link")
	c.notices.mu.Lock()
	defer c.notices.mu.Unlock()
	for _, r := range c.notices.seen {
		c.search("a notification", fmt.Sprintf("%s %s %s", r.path, r.header, r.body))
	}
	for _, r := range c.stripe.seen {
		c.search("a request to Stripe", fmt.Sprintf("%s %s %s", r.path, r.header, r.body), "API key of Stripe")
	}
}
