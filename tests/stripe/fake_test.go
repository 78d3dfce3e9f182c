package stripe

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-mock/embedded"
)

// exchange is a request to the fake and its answer, as internal/billing records them.
type exchange struct {
	Test    string
	Method  string
	URI     string
	Header  http.Header
	Body    string
	Status  int
	Answer  json.RawMessage
	Answers string
}

// operations are what the client asks for, by the paths of the document.
var operations = []struct {
	method, path string
	match        *regexp.Regexp
}{
	{"GET", "/v1/subscriptions/{subscription_exposed_id}", regexp.MustCompile(`^/v1/subscriptions/[^/]+$`)},
	{"GET", "/v1/subscriptions", regexp.MustCompile(`^/v1/subscriptions$`)},
	{"GET", "/v1/customers/{customer}", regexp.MustCompile(`^/v1/customers/[^/]+$`)},
	{"GET", "/v1/subscription_items", regexp.MustCompile(`^/v1/subscription_items$`)},
	{"GET", "/v1/checkout/sessions/{session}/line_items", regexp.MustCompile(`^/v1/checkout/sessions/[^/]+/line_items$`)},
	{"GET", "/v1/invoices/{invoice}/lines", regexp.MustCompile(`^/v1/invoices/[^/]+/lines$`)},
	{"GET", "/v1/events", regexp.MustCompile(`^/v1/events$`)},
	{"POST", "/v1/billing/meter_events", regexp.MustCompile(`^/v1/billing/meter_events$`)},
}

// The tests of internal/billing run against a fake that remembers what it was given. All that they
// ask of it is accepted by Stripe's own mock server, too, and all that it answers is as the OpenAPI
// document says.
func TestFakeKeepsToTheDocument(t *testing.T) {
	t.Parallel()
	recorded := record(t)
	m := newMock(t)
	document, err := openapi3.NewLoader().LoadFromData(embedded.OpenAPISpec)
	require.NoError(t, err)
	seen := map[string]int{}
	for _, e := range recorded {
		path, _, _ := strings.Cut(e.URI, "?")
		for _, o := range operations {
			if o.method != e.Method || !o.match.MatchString(path) {
				continue
			}
			if e.Status < 300 {
				seen[o.method+" "+o.path]++
				m.accepts(t, e)
			}
			require.Equal(t, "application/json", e.Answers, "%s: %s %s", e.Test, e.Method, e.URI)
			var value any
			require.NoError(t, json.Unmarshal(e.Answer, &value))
			operation := document.Paths.Find(o.path).GetOperation(o.method)
			response := operation.Responses.Status(e.Status)
			if response == nil {
				response = operation.Responses.Default()
			}
			err := response.Value.Content.Get("application/json").Schema.Value.VisitJSON(value, openapi3.VisitAsResponse())
			require.NoError(t, err, "%s: %s %s answered %d\n%s", e.Test, e.Method, e.URI, e.Status, e.Answer)
		}
	}
	for _, o := range operations {
		require.NotZero(t, seen[o.method+" "+o.path], "the tests ask the fake for %s %s", o.method, o.path)
	}
}

// accepts fails the test if stripe-mock refuses a request that the fake has answered.
func (m *mock) accepts(t *testing.T, e exchange) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), e.Method, m.url+e.URI, strings.NewReader(e.Body))
	require.NoError(t, err)
	for _, name := range []string{"Authorization", "Content-Type", "Stripe-Version", "Idempotency-Key"} {
		r.Header[name] = e.Header[name]
	}
	r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "_live_", "_test_", 1)) // it takes no keys of live mode
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode, "%s: %s %s %s", e.Test, e.Method, e.URI, e.Body)
}

// record runs the tests of internal/billing that use the fake, and returns what they exchanged.
func record(t *testing.T) (out []exchange) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exchanges")
	run := exec.CommandContext(t.Context(), "go", "test", "-count=1", "./internal/billing", "-run",
		"^(TestFakeIsReadByStripeGo|TestAskTheProvider|TestManyItems|TestReconcile.*|TestPurchases.*|TestPush.*)$", "-args", "-exchanges", path)
	run.Dir = "../.."
	output, err := run.CombinedOutput()
	require.NoError(t, err, "%s", output)
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e exchange
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		out = append(out, e)
	}
	require.NoError(t, lines.Err())
	return out
}
