package tests

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// canaryRun is one installation whose secrets are all known to the test.
type canaryRun struct {
	*canaries
	settings settings
	owner    string // URL of the database's owner
	i        *instance
	tenant   *client
	mails    *mailSink
	notices  *httpSink
	stripe   *httpSink
	said     strings.Builder // output of commands and answers, in which no secret may be
}

func random(t testing.TB, bytes int) []byte {
	t.Helper()
	b := make([]byte, bytes)
	_, err := rand.Read(b)
	require.NoError(t, err)
	return b
}

// secretText returns a random text that begins with the given one.
func (c *canaryRun) secretText(what, begin string) string {
	return c.keep(what, begin+hex.EncodeToString(random(c.t, 12)))
}

// newCanaryRun prepares an installation with a password or a key wherever there can be one.
func newCanaryRun(t *testing.T) *canaryRun {
	t.Helper()
	c := &canaryRun{
		canaries: &canaries{t: t, secrets: map[string]string{}}, mails: newMailSink(t), notices: newHTTPSink(t, http.StatusOK),
		stripe: newHTTPSink(t, http.StatusUnauthorized),
	}
	s := newSettings(t)
	c.owner = s["WEIR_DATABASE_URL"]
	u, err := url.Parse(c.owner)
	require.NoError(t, err)
	login := "weir_canary_" + hex.EncodeToString(random(t, 6))
	password := c.secretText("password of Postgres", "pgcanary")
	harness.Exec(t, c.owner, "CREATE ROLE "+login+" LOGIN NOINHERIT PASSWORD '"+password+"' IN ROLE weir_app, weir_system")
	t.Cleanup(func() { harness.Exec(t, testenv.DatabaseURL(t), "DROP ROLE "+login) })
	u.User = url.UserPassword(login, password)

	redisPassword := c.secretText("password of Redis", "rediscanary")
	r := testenv.StartRedis(t)
	require.NoError(t, redisAdmin(t, r).ConfigSet(t.Context(), "requirepass", redisPassword).Err())
	redisURL, err := url.Parse(r.URL)
	require.NoError(t, err)
	redisURL.User = url.UserPassword("", redisPassword)

	key := random(t, 32)
	c.keep("encryption key", base64.StdEncoding.EncodeToString(key))
	c.keep("encryption key (bytes)", string(key))
	c.settings = s.With(settings{
		"WEIR_DATABASE_URL": u.String(), "WEIR_MIGRATE_DATABASE_URL": c.owner, "WEIR_ALLOW_SUPERUSER": "false",
		"WEIR_REDIS_URL":  redisURL.String(),
		"WEIR_LOG_LEVEL":  "debug",
		"WEIR_SMTP_URL":   "smtp://weir:" + c.secretText("password of mail", "smtpcanary") + "@" + c.mails.listener.Addr().String(),
		"WEIR_MAIL_FROM":  "Weir <weir@example.com>",
		"WEIR_PUBLIC_URL": "https://weir.example", "WEIR_SIGNUP": "open",
		"WEIR_ENCRYPTION_KEY": base64.StdEncoding.EncodeToString(key), "WEIR_SNAPSHOT_FILE": filepath.Join(t.TempDir(), "snapshot"),
		"WEIR_STRIPE_URL": c.stripe.URL, "WEIR_NOTIFICATION_NETWORKS": "127.0.0.0/8,::1/128",
	}).With(c.secureSettings())
	return c
}

// command runs a command of the server. Its output is searched, unless it is the secret.
func (c *canaryRun) command(prints string, args ...string) string {
	c.t.Helper()
	stdout, stderr, code := runServer(c.t, c.settings, args...)
	require.Zero(c.t, code, "%s: %s", args, stderr)
	c.said.WriteString(stderr + "\n")
	if prints == "" {
		c.said.WriteString(stdout + "\n")
		return stdout
	}
	return c.keep(prints, tokenOf(strings.TrimSpace(stdout)))
}

// tokenOf returns the secret part of a link, or the text if it is none.
func tokenOf(text string) string {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "https://") {
		return text[strings.LastIndexByte(text, '/')+1:]
	}
	return text
}

// create sends a POST twice with the same Idempotency-Key, and keeps the secret in a field of the
// first answer. The second answer must not have it.
func (c *canaryRun) create(path, body, field, what string) (secret string, created map[string]any) {
	c.t.Helper()
	header := http.Header{"Idempotency-Key": {"key-" + hex.EncodeToString(random(c.t, 8))}}
	for range 2 {
		got, err := c.tenant.tryWith(http.MethodPost, c.i.URL()+path, body, header)
		require.NoError(c.t, err)
		require.Less(c.t, got.status, 300, "%s: %s", path, got.body)
		if secret != "" {
			c.said.Write(got.body)
			return secret, created
		}
		require.NoError(c.t, json.Unmarshal(got.body, &created))
		secret, _ = created[field].(string)
		require.NotEmpty(c.t, secret, "%s: %s", path, got.body)
		secret = c.keep(what, tokenOf(secret))
	}
	panic("unreachable")
}

// mailed waits for a mail with a link that begins with path, and keeps its token.
func (c *canaryRun) mailed(path, what string) string {
	c.t.Helper()
	link := regexp.MustCompile(regexp.QuoteMeta("https://weir.example"+path) + `([A-Za-z0-9_-]{43})`)
	var found []string
	require.Eventually(c.t, func() bool {
		found = link.FindStringSubmatch(c.mails.all())
		return found != nil
	}, patience, tick, "no mail with %s", path)
	return c.keep(what, found[1])
}

// browser sends forms and keeps cookies, which are secrets.
type browser struct {
	c       *canaryRun
	cookies map[string]string
}

func (b *browser) send(method, path, form string) (status int, body string) {
	b.c.t.Helper()
	request, err := http.NewRequestWithContext(b.c.t.Context(), method, b.c.i.URL()+path, strings.NewReader(form))
	require.NoError(b.c.t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for name, value := range b.cookies {
		request.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	response, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Timeout: patience}).Do(request)
	require.NoError(b.c.t, err)
	defer response.Body.Close()
	for _, cookie := range response.Cookies() {
		b.cookies[cookie.Name] = cookie.Value
		if len(cookie.Value) >= 30 && !strings.Contains(cookie.Name, "said") {
			b.c.keep("cookie "+cookie.Name+" "+cookie.Value[:6], cookie.Value)
		}
	}
	page, err := io.ReadAll(response.Body)
	require.NoError(b.c.t, err)
	return response.StatusCode, string(page)
}

func (b *browser) post(path string, want int, values ...string) {
	b.c.t.Helper()
	form := url.Values{}
	for i := 0; i < len(values); i += 2 {
		form.Set(values[i], values[i+1])
	}
	status, body := b.send(http.MethodPost, path, form.Encode())
	require.Equal(b.c.t, want, status, "%s: %s", path, body)
}

// Nothing that a run writes contains a secret, in whatever form: logs at the level debug, a dump of
// goroutines as a panic prints it, metrics, profiles, the process list, the database, Redis, the
// snapshot file, exports, pages, mails and notifications. A secret is only in the answer or the
// mail that hands it over.
func TestNoSecretIsWrittenAnywhere(t *testing.T) {
	t.Parallel()
	c := newCanaryRun(t)
	c.i = start(t, c.settings).AwaitReady()
	operator := newClient(t, c.command("operator key", "operator-key", "create", "canary"))
	var made struct {
		Key struct{ Secret string } `json:"key"`
	}
	got := operator.do(http.MethodPost, c.i.URL()+"/v1/tenants", `{"slug":"acme","name":"Acme"}`, http.StatusCreated)
	require.NoError(t, json.Unmarshal(got.body, &made))
	c.tenant = newClient(t, c.keep("first API key", made.Key.Secret))

	c.useTheAPI()
	b := c.useTheDashboard()
	c.misuseKeys()
	c.askTheGateway()
	c.askOverTLS()

	// A second instance reads what the first wrote, and writes the snapshot file.
	second := start(t, c.settings).AwaitReady()
	require.Eventually(t, func() bool {
		content, err := os.ReadFile(c.settings["WEIR_SNAPSHOT_FILE"])
		return err == nil && strings.Contains(string(content), `"orders"`)
	}, patience, tick)
	c.searchAll(b)
	for _, i := range []*instance{c.i, second} {
		i.Signal(syscall.SIGQUIT) // the runtime prints all goroutines, as after a panic
		i.Exit()
		require.Contains(t, i.Log(), "goroutine ")
		c.search("the log", i.Log())
		c.search("standard output", i.Out.String()+"(end)")
	}
	c.failToStart()
	c.search("the output of commands, and replays", c.said.String())
}

// useTheAPI creates each object that has a secret, and lets the service use the secret.
func (c *canaryRun) useTheAPI() {
	c.t.Helper()
	base := c.i.URL()
	secret, key := c.create("/v1/keys", `{"name":"short-lived","scopes":["check"]}`, "secret", "second API key")
	rotated, _ := c.create(fmt.Sprintf("/v1/keys/%s/rotate", key["id"]), `{"overlap":"1h"}`, "secret", "rotated API key")
	c.tenant.putRule("orders", `{"resource":"orders","limit":2,"window":"1h","algorithm":"fixed_window","metering":"units"}`, c.i)
	for _, key := range []string{secret, rotated} {
		for range 2 {
			got, err := newClient(c.t, key).try(http.MethodPost, base+"/v1/check", `{"subject":"user_42","resource":"orders","cost":2}`)
			require.NoError(c.t, err)
			require.Contains(c.t, []int{http.StatusOK, http.StatusTooManyRequests}, got.status)
		}
	}
	hook := c.secretText("signing secret of Stripe", "whsec_")
	stripeKey := c.secretText("API key of Stripe", "rk_test_")
	body := fmt.Sprintf(`{"provider":"stripe","name":"Stripe","signing_secrets":[%q],"api_key":%q}`, hook, stripeKey)
	got := c.tenant.do(http.MethodPost, base+"/v1/billing/endpoints", body, http.StatusCreated)
	c.said.Write(got.body)
	generic := c.keep("signing secret of generic events", "whsec_"+base64.StdEncoding.EncodeToString(random(c.t, 24)))
	got = c.tenant.do(http.MethodPost, base+"/v1/billing/endpoints", fmt.Sprintf(`{"provider":"generic","name":"Own","signing_secrets":[%q]}`, generic), http.StatusCreated)
	c.said.Write(got.body)
	var endpoint struct{ ID string }
	require.NoError(c.t, json.Unmarshal(got.body, &endpoint))
	c.tenant.do(http.MethodPost, base+"/v1/webhooks/generic/"+endpoint.ID, `{"type":"x"}`, http.StatusBadRequest)
	_, stderr, code := runServer(c.t, c.settings, "billing", "reconcile") // the provider refuses, and repeats the key in its answer
	c.said.WriteString(stderr)
	require.NotZero(c.t, code, stderr)

	_, notified := c.create("/v1/notification-endpoints", fmt.Sprintf(`{"url":%q}`, strings.Replace(c.notices.URL, "127.0.0.1", "localhost", 1)+"/hook"), "secret", "secret of notifications")
	c.tenant.do(http.MethodPost, fmt.Sprintf("%s/v1/notification-endpoints/%s/test", base, notified["id"]), "", http.StatusOK)
	c.notices.await(c.t, `"type":"test"`)
	c.create(fmt.Sprintf("/v1/notification-endpoints/%s/rotate", notified["id"]), `{}`, "secret", "rotated secret of notifications")

	c.tenant.do(http.MethodPut, base+"/v1/subjects/user_42", `{}`, http.StatusCreated)
	token, _ := c.create("/v1/subjects/user_42/portal-links", `{"expires_in":"10m"}`, "url", "link to the customer page")
	visitor := &browser{c: c, cookies: map[string]string{}}
	visitor.send(http.MethodGet, "/portal/open/"+token, "")
	status, page := visitor.send(http.MethodPost, "/portal/open/"+token, "")
	require.Less(c.t, status, 400, page)
	c.tenant.do(http.MethodPost, base+"/v1/members", `{"email":"ada@example.com","role":"owner"}`, http.StatusCreated)
}

// failToStart starts servers whose settings or stores are wrong.
func (c *canaryRun) failToStart() {
	c.t.Helper()
	for name, wrong := range map[string]string{
		"WEIR_DATABASE_URL":        strings.Replace(c.settings["WEIR_DATABASE_URL"], "postgres://", "mysql://", 1),
		"WEIR_REDIS_URL":           c.settings["WEIR_REDIS_URL"] + "x",
		"WEIR_SMTP_URL":            c.settings["WEIR_SMTP_URL"] + "/path",
		"WEIR_ENCRYPTION_KEY":      c.settings["WEIR_ENCRYPTION_KEY"] + "," + c.settings["WEIR_ENCRYPTION_KEY"],
		"WEIR_DATABASE_LISTEN_URL": strings.Replace(c.settings["WEIR_DATABASE_URL"], "@127", ":@127", 1) + ":x",
	} {
		stdout, stderr, code := runServer(c.t, c.settings.With(settings{name: wrong}), "serve")
		require.NotZero(c.t, code, name)
		c.said.WriteString(stdout + stderr)
	}
	stdout, stderr, code := runServer(c.t, c.settings, "--help")
	require.Zero(c.t, code)
	c.said.WriteString(stdout + stderr)
	gone := start(c.t, c.settings.With(settings{
		"WEIR_DATABASE_URL": replaceHost(c.t, c.settings["WEIR_DATABASE_URL"]), "WEIR_REDIS_URL": replaceHost(c.t, c.settings["WEIR_REDIS_URL"]),
		"WEIR_MIGRATE": "false",
	}))
	gone.AwaitLog("WEIR_SNAPSHOT_FILE")
	gone.AwaitLog("redis")
	gone.Kill()
	c.search("the log without Postgres and Redis", gone.Log())
}

// replaceHost returns a URL of a server that does not exist.
func replaceHost(t testing.TB, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	u.Host = "127.0.0.1:1"
	return u.String()
}

// raw sends bytes over a connection of its own.
func (c *canaryRun) raw(text string) {
	c.t.Helper()
	conn, err := net.Dial("tcp", c.i.Address("WEIR_HTTP_ADDR"))
	require.NoError(c.t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, text)
	require.NoError(c.t, err)
	require.NoError(c.t, conn.(*net.TCPConn).CloseWrite())
	_, _ = io.Copy(io.Discard, conn) // the server may have closed it already
}
