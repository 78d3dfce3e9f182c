package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who edits limits sees them at work with the next check at the same instance, and at every
// other within a second; and no edit gives anybody a fresh quota.
func TestChangesReachEveryInstance(t *testing.T) {
	s := newSettings(t)
	here, there := start(t, s), start(t, s)
	here.AwaitReady()
	there.AwaitReady()
	tenant := newTenant(t, s, here)
	statusOf := func(i *instance, body string) int {
		got, _, err := tenant.check(i.URL()+"/v1/check", body)
		require.NoError(t, err)
		return got.status
	}
	// There is nothing to wait for but the change itself, so a second is a second.
	within := func(what string, holds func() bool) {
		t.Helper()
		began := time.Now()
		for !holds() {
			require.Less(t, time.Since(began), patience, what)
		}
		if took := time.Since(began); took > time.Second {
			t.Logf("%s took %v on this machine", what, took)
		}
	}

	// An instance answers a write when it acts on it, but waits half a second for that at most.
	// Where a write took as long, on a machine that is busy with other things, what it brings is
	// waited for here.
	const followed = 400 * time.Millisecond
	write := func(method, url, body string, status int) (quick bool) {
		began := time.Now()
		tenant.do(method, url, body, status)
		return time.Since(began) < followed
	}
	here429 := func(body string, quick bool, what string) {
		t.Helper()
		if !quick {
			within(what, func() bool { return statusOf(here, body) == 429 })
		}
		require.Equal(t, 429, statusOf(here, body), what)
	}
	for n := range 20 {
		slug := fmt.Sprintf("rule-%d", n)
		body := fmt.Sprintf(`{"subject":"ada","resource":%q}`, slug)
		rule := here.URL() + "/v1/rules/" + slug
		quick := write(http.MethodPut, rule, fmt.Sprintf(`{"resource":%q,"algorithm":"fixed_window_first_hit","limit":2,"window":"1h"}`, slug), http.StatusCreated)
		require.Equal(t, 200, statusOf(here, body))
		require.Equal(t, 200, statusOf(here, body))
		here429(body, quick, "the new rule holds with the next check")
		within("a new rule", func() bool { return statusOf(there, body) == 429 })

		if write(http.MethodPatch, rule, `{"limit":3}`, http.StatusOK) {
			require.Equal(t, 200, statusOf(here, body), "the raised limit too, and what was used stays used")
		} else {
			within("a raised limit, here", func() bool { return statusOf(here, body) == 200 })
		}
		require.Equal(t, 429, statusOf(here, body))
		within("a raised limit", func() bool { return statusOf(there, body) == 429 })

		tenant.do(http.MethodPut, here.URL()+"/v1/subjects/ada/overrides/"+slug, `{"limit":4,"reason":"test"}`, http.StatusCreated)
		within("an override", func() bool { return statusOf(there, body) == 200 })
		require.Equal(t, 429, statusOf(here, body), "one unit more for both instances together")
		if write(http.MethodDelete, rule, "", http.StatusNoContent) {
			require.Equal(t, 200, statusOf(here, body))
		} else {
			within("a rule that is gone, here", func() bool { return statusOf(here, body) == 200 })
		}
	}
}

// A revoked key is dead at once where it was revoked, and everywhere within a second.
func TestRevocationReachesEveryInstance(t *testing.T) {
	s := newSettings(t)
	here, there := start(t, s), start(t, s)
	here.AwaitReady()
	there.AwaitReady()
	tenant := newTenant(t, s, here)
	for range 10 {
		var key struct{ ID, Secret string }
		require.NoError(t, json.Unmarshal(tenant.do(http.MethodPost, here.URL()+"/v1/keys", `{"name":"short-lived","scopes":["check"]}`, http.StatusCreated).body, &key))
		holder := newClient(t, key.Secret)
		holder.do(http.MethodPost, here.URL()+"/v1/check", `{"subject":"ada"}`, http.StatusOK)
		holder.do(http.MethodPost, there.URL()+"/v1/check", `{"subject":"ada"}`, http.StatusOK)
		tenant.do(http.MethodDelete, here.URL()+"/v1/keys/"+key.ID, "", http.StatusNoContent)
		revoked := time.Now()
		holder.do(http.MethodPost, here.URL()+"/v1/check", `{"subject":"ada"}`, http.StatusUnauthorized)
		for {
			got, err := holder.try(http.MethodPost, there.URL()+"/v1/check", `{"subject":"ada"}`)
			require.NoError(t, err)
			if got.status == http.StatusUnauthorized {
				break
			}
			require.Equal(t, http.StatusOK, got.status)
			require.Less(t, time.Since(revoked), patience)
		}
		if took := time.Since(revoked); took > time.Second {
			t.Logf("revocation took %v on this machine", took)
		}
	}
}
