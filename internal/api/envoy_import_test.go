package api

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"weir/internal/importer"
)

// asked is one request of a sequence: its descriptors as KEY=VALUE, separated by &, and the code of
// each status, O for OK and X for OVER_LIMIT.
type asked struct {
	descriptors []string
	codes       string
}

func one(descriptor, codes string) []asked {
	var all []asked
	for _, code := range codes {
		all = append(all, asked{[]string{descriptor}, string(code)})
	}
	return all
}

func descriptorOf(text string) *envoyratelimit.RateLimitDescriptor {
	var entries []string
	for _, entry := range strings.Split(text, "&") {
		key, value, _ := strings.Cut(entry, "=")
		entries = append(entries, key, value)
	}
	return described(entries...)
}

// An imported configuration of envoyproxy/ratelimit limits the same descriptors as before.
func TestImportedRateLimits(t *testing.T) {
	for name, sequence := range map[string][]asked{
		"two-values": join(one("collection=accounts", "OOX"), one("collection=other", "OX"), one("collection=unknown", "OOO")),
		"nested": join(
			one("kind=campaign&receiver=ada", "OX"), one("kind=campaign&receiver=grace", "O"), one("kind=news&receiver=ada", "OO"),
			one("receiver=ada", "O"),
			// Both are decided together: one denies, so neither is charged.
			[]asked{{[]string{"kind=campaign&receiver=ada", "receiver=ada"}, "XO"}},
			one("receiver=ada", "OOX"), one("kind=campaign", "OO"),
		),
		"banned-address": join(one("remote_address=192.0.2.1", "OOX"), one("remote_address=192.0.2.66", "XX"), one("remote_address=192.0.2.2", "O")),
		"depth":          join(one("one=1&more=x", "OOO"), one("one=1", "OX"), one("two=2", "OO"), one("two=2&inner=x", "OX"), one("two=2&inner=y", "O")),
		"unlimited":      join(one("directory=x", "OOOO"), one("cloud=x", "OX"), one("cloud=y", "O")),
		"shadow":         join(one("service=s&user=ada", "OOO"), one("service=s&user=grace", "OOX"), one("service=t&user=grace", "O"), one("service=s&user=other", "OO")),
		"replaces": join(
			one("read=report&user=ada", "OX"),
			[]asked{
				{[]string{"read=report&user=ada", "endpoint=summary&user=ada"}, "OO"},
				{[]string{"endpoint=summary&user=ada", "read=report&user=ada"}, "OO"},
				{[]string{"read=report&user=ada", "endpoint=summary&user=ada"}, "OO"},
				{[]string{"read=report&user=ada", "endpoint=summary&user=ada"}, "OX"},
			},
		),
		"wildcards": join(
			one("path=doc/a", "OX"), one("path=doc/b", "OX"), one("path=doc/free", "OOO"),
			one("path=doc/named", "OOO"), one("path=doc/named&user=ada", "OX"),
			one("path=img/a", "O"), one("path=img/b", "O"), one("path=img/c", "X"),
			one("path=other", "OOOX"), one("path=", "OOOX"), one("path=doc/a&more=x", "OO"),
		),
		"gateway": join(
			one("category=account", "OOOOX"), one("source_cluster=proxy&destination_cluster=mock", "OX"),
			one("first=f", "OOX"), one("first=g&second=hooper", "OX"), one("first=g&second=x", "OOOX"), one("first=g&second=banned", "X"),
			one("first=g&third=x", "OX"), one("first=g&third=shady", "OOOOO"), one("first=g&third=not-so-shady", "OOOX"),
			one("first=g&fourth=x", "OOO"), one("anything=a", "OOX"), one("anything=b", "O"), one("free=x", "OOO"),
			[]asked{{[]string{"first=g&second=banned", "source_cluster=proxy&destination_cluster=override"}, "OO"}},
		),
	} {
		t.Run(name, func(t *testing.T) {
			s := newEnvoyStack(t)
			file, err := os.ReadFile(filepath.Join("..", "importer", "testdata", name+".yaml"))
			require.NoError(t, err)
			document, _, err := importer.EnvoyRateLimit(file)
			require.NoError(t, err)
			text, err := document.YAML()
			require.NoError(t, err)
			s.contract.call(s.key, "PUT", "/v1/config", string(text), header{"Content-Type", "application/yaml"}).ok(200)
			for _, request := range sequence {
				ask := &rls.RateLimitRequest{Domain: document.Routes[0].Name}
				for _, d := range request.descriptors {
					ask.Descriptors = append(ask.Descriptors, descriptorOf(d))
				}
				var codes strings.Builder
				for _, status := range s.answered(ask).Statuses {
					codes.WriteString(map[rls.RateLimitResponse_Code]string{rls.RateLimitResponse_OK: "O", rls.RateLimitResponse_OVER_LIMIT: "X"}[status.Code])
				}
				require.Equal(t, request.codes, codes.String(), "%v", request.descriptors)
			}
		})
	}
}

func join(parts ...[]asked) (all []asked) {
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// A route of the domain decides descriptors without a subject, and no others.
func TestEnvoyRoutes(t *testing.T) {
	s := newEnvoyStack(t)
	document := `{"rules":[{"slug":"routed","resource":"orders","limit":3,"window":"365d","algorithm":"fixed_window"}],
		"routes":[
			{"slug":"edge","subject":["header:x-user","ip"],"resources":[{"match":"POST /orders","resource":"orders","cost":2},{"match":"?x-user={}","resource":"orders"}]},
			{"slug":"open","subject":["header:x-user"],"no_subject":"allow"}]}`
	s.contract.call(s.key, "PUT", "/v1/config", document).ok(200)
	ask := func(domain string, entries ...string) *rls.RateLimitResponse {
		return s.answered(&rls.RateLimitRequest{Domain: domain, Descriptors: []*envoyratelimit.RateLimitDescriptor{described(entries...)}})
	}
	require.Equal(t, uint32(2), ask("edge", "x-user", "ada").Statuses[0].LimitRemaining)
	require.Equal(t, uint32(0), ask("Edge", "x-user", "ada", "path", "/orders", "method", "POST").Statuses[0].LimitRemaining, "the template's cost")
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, ask("edge", "x-user", "ada").OverallCode)
	require.Equal(t, uint32(1), ask("edge", "remote_address", "192.0.2.1", "path", "/orders", "method", "POST").Statuses[0].LimitRemaining)
	require.Contains(t, string(ask("edge", "remote_address", "unknown").RawBody), "SUBJECT_MISSING")
	require.Contains(t, string(ask("edge", "x-user", "a\x00").RawBody), "SUBJECT_INVALID")
	require.Contains(t, string(ask("none", "x-user", "ada").RawBody), "SUBJECT_MISSING")
	require.Equal(t, uint32(2), ask("edge", "subject", "grace", "x-user", "ada", "resource", "orders").Statuses[0].LimitRemaining)
	require.Equal(t, rls.RateLimitResponse_OK, ask("open", "other", "x").OverallCode)
	r := s.answered(&rls.RateLimitRequest{Domain: "open", Descriptors: []*envoyratelimit.RateLimitDescriptor{
		described("other", "x"), described("subject", "hopper", "resource", "orders"),
	}})
	require.Nil(t, r.Statuses[0].CurrentLimit, "allowed without counting")
	require.Equal(t, uint32(2), r.Statuses[1].LimitRemaining)
	_, err := s.call(&rls.RateLimitRequest{Domain: "open", Descriptors: []*envoyratelimit.RateLimitDescriptor{
		described("other", "x"), described("subject", "hopper", "plan", "none"),
	}})
	require.ErrorContains(t, err, "UNKNOWN_PLAN")
}
