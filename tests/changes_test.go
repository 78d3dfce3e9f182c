package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A changed limit is in force for the next check at the same instance, and at every other instance
// within a second. No change resets the usage.
func TestChangesReachEveryInstance(t *testing.T) {
	t.Parallel()
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
	// The test waits only for the change itself, so a second is enough.
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

	// An instance answers a write after it has applied it, but waits at most half a second for
	// that. If a write took that long on a busy machine, the test waits for its effect here.
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
		here429(body, quick, "the new rule is in force for the next check")
		within("a new rule", func() bool { return statusOf(there, body) == 429 })

		if write(http.MethodPatch, rule, `{"limit":3}`, http.StatusOK) {
			require.Equal(t, 200, statusOf(here, body), "so is the raised limit, and the usage is kept")
		} else {
			within("a raised limit, here", func() bool { return statusOf(here, body) == 200 })
		}
		require.Equal(t, 429, statusOf(here, body))
		within("a raised limit", func() bool { return statusOf(there, body) == 429 })

		tenant.do(http.MethodPut, here.URL()+"/v1/subjects/ada/overrides/"+slug, `{"limit":4,"reason":"test"}`, http.StatusCreated)
		within("an override", func() bool { return statusOf(there, body) == 200 })
		require.Equal(t, 429, statusOf(here, body), "one more unit for both instances together")
		if write(http.MethodDelete, rule, "", http.StatusNoContent) {
			require.Equal(t, 200, statusOf(here, body))
		} else {
			within("a deleted rule, here", func() bool { return statusOf(here, body) == 200 })
		}
	}
}

// A revoked key is refused immediately where it was revoked, and everywhere within a second.
func TestRevocationReachesEveryInstance(t *testing.T) {
	t.Parallel()
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

// A revocation also travels through Redis: an instance that cannot reach Postgres must not accept a
// revoked key until Postgres is available again.
func TestRevocationReachesAnInstanceWithoutPostgres(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	u, err := url.Parse(s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	door := newDoor(t, u.Host)
	u.Host = door.addr
	door.open()
	here := start(t, s)
	away := start(t, s.With(settings{"WEIR_DATABASE_URL": u.String(), "WEIR_MAX_CONFIG_AGE": "2s"}))
	here.AwaitReady()
	away.AwaitReady()
	tenant := newTenant(t, s, here)
	const body = `{"subject":"ada"}`
	var keys [2]struct{ ID, Secret string }
	var holders [2]*client
	for i := range keys {
		answer := tenant.do(http.MethodPost, here.URL()+"/v1/keys", `{"name":"check","scopes":["check"]}`, http.StatusCreated)
		require.NoError(t, json.Unmarshal(answer.body, &keys[i]))
		holders[i] = newClient(t, keys[i].Secret)
		holders[i].do(http.MethodPost, away.URL()+"/v1/check", body, http.StatusOK)
	}
	refused := func(holder *client) {
		t.Helper()
		require.Eventually(t, func() bool {
			got, err := holder.try(http.MethodPost, away.URL()+"/v1/check", body)
			require.NoError(t, err)
			return got.status == http.StatusUnauthorized
		}, patience, time.Millisecond)
	}

	door.close()
	tenant.do(http.MethodDelete, here.URL()+"/v1/keys/"+keys[0].ID, "", http.StatusNoContent)
	refused(holders[0])
	holders[1].do(http.MethodPost, away.URL()+"/v1/check", body, http.StatusOK)

	require.Eventually(t, func() bool { return status(away.URL()+"/readyz") == http.StatusServiceUnavailable }, patience, 10*time.Millisecond,
		"the configuration is older than WEIR_MAX_CONFIG_AGE")
	require.Equal(t, http.StatusOK, status(here.URL()+"/readyz"))
	door.open()
	away.AwaitReady()
	holders[1].do(http.MethodPost, away.URL()+"/v1/check", body, http.StatusOK)
}
