package tests

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// canaries are secrets of one run, which must appear only where a person or a program gets them on
// purpose.
type canaries struct {
	t       testing.TB
	mu      sync.Mutex
	secrets map[string]string // by what they are
}

// keep adds a secret, and returns it.
func (c *canaries) keep(what, secret string) string {
	c.t.Helper()
	require.GreaterOrEqual(c.t, len(secret), 12, "%s: a short text is found by accident", what)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secrets[what] = secret
	return secret
}

// forms returns the texts in which a secret can be recognized: itself, in hexadecimal, and in
// base64, in which a text has three forms, by its position in what was encoded.
func forms(secret string) map[string]string {
	all := map[string]string{
		"plain": secret, "hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"URL": url.QueryEscape(secret), "path": url.PathEscape(secret), "bytes": fmt.Sprintf("%d", []byte(secret)), "quoted": fmt.Sprintf("%q", secret),
	}
	for offset := range 3 {
		full := append(make([]byte, offset), secret...)
		full = full[:len(full)/3*3] // the last bytes depend on what follows
		first := 4
		if offset == 0 {
			first = 0
		}
		all[fmt.Sprintf("base64 at %d", offset)] = base64.StdEncoding.EncodeToString(full)[first:]
		all[fmt.Sprintf("base64url at %d", offset)] = base64.URLEncoding.EncodeToString(full)[first:]
	}
	return all
}

// search fails the test for each secret that the text contains, except those of which what begins
// with one of the given words.
func (c *canaries) search(where, text string, except ...string) {
	c.t.Helper()
	require.NotEmpty(c.t, text, where)
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, secret := range c.secrets {
		if slices.ContainsFunc(except, func(e string) bool { return strings.HasPrefix(what, e) }) {
			continue
		}
		for form, encoded := range forms(secret) {
			if at := strings.Index(text, encoded); at >= 0 {
				c.t.Errorf("%s contains the %s (%s): …%q…", where, what, form, text[max(0, at-120):min(len(text), at+len(encoded)+40)])
				break
			}
		}
	}
}

// dumpDatabase returns all rows of a database. Bytes are in hexadecimal.
func dumpDatabase(t testing.TB, databaseURL string) string {
	t.Helper()
	program, err := exec.LookPath("pg_dump")
	if err != nil {
		newest, _ := exec.Command("sh", "-c", "ls /usr/lib/postgresql/*/bin/pg_dump | tail -1").Output() // empty: there is none
		program = strings.TrimSpace(string(newest))
	}
	require.NotEmpty(t, program, "install pg_dump")
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	password, _ := u.User.Password()
	u.User = url.User(u.User.Username())
	cmd := exec.Command(program, "--data-only", "--inserts", u.String())
	cmd.Env = append(os.Environ(), "PGPASSWORD="+password)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	require.NoError(t, cmd.Run(), "%s", stderr.String())
	require.Contains(t, out.String(), "INSERT INTO")
	return out.String()
}

// The search finds a secret in each of its forms. Otherwise the canary test would prove nothing.
func TestCanarySearchFinds(t *testing.T) {
	t.Parallel()
	const secret = "canary-Ab+/=&?\x01\xff"
	for form, text := range map[string]string{
		"plain": "x" + secret + "y", "hex": hex.EncodeToString([]byte("x" + secret + "y")),
		"base64, 0": base64.StdEncoding.EncodeToString([]byte(secret + "more")), "base64, 1": base64.StdEncoding.EncodeToString([]byte("x" + secret)),
		"base64, 2": base64.RawURLEncoding.EncodeToString([]byte("xy" + secret + "z")), "base64, 7": base64.StdEncoding.EncodeToString([]byte("1234567" + secret + "z")),
		"URL": url.Values{"k": {secret}}.Encode(), "quoted": fmt.Sprintf("%q", secret),
	} {
		inner := &recordedTB{TB: t}
		c := &canaries{t: inner, secrets: map[string]string{"password": secret}}
		c.search("the text", text)
		require.True(t, inner.failed, form)
		inner.failed = false
		c.search("the text", text, "pass")
		require.False(t, inner.failed, form)
	}
}

// recordedTB notes failures instead of failing.
type recordedTB struct {
	testing.TB
	failed bool
}

func (r *recordedTB) Errorf(string, ...any) { r.failed = true }
