package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A member creates an endpoint, sees its secret once, sends a test, sees the outcome, replays it,
// and deletes the endpoint.
func TestNotificationPages(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	require.Contains(t, b.get(notificationsURL).body, "No endpoints yet")
	got := b.write(notificationsURL, url.Values{"url": {"http://example.com"}})
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Must use https")

	got = b.write(notificationsURL, url.Values{"url": {" https://hooks.example.com/in?token=abc "}, "description": {"on call"}, tenants.QuotaReached: {"on"}})
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Contains(t, got.header.Get("Cache-Control"), "no-transform")
	found := regexp.MustCompile(`<code id="secret">(whsec_[^<]+)</code>`).FindStringSubmatch(got.body)
	require.NotNil(t, found)
	list, _, err := s.store.NotificationEndpoints(t.Context(), s.a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	e := list[0]
	require.Equal(t, []string{tenants.QuotaReached}, e.Types)
	require.True(t, e.Enabled)
	path := notificationsURL + "/" + e.ID.String()
	for _, later := range []string{notificationsURL, path, "/audit"} {
		require.NotContains(t, b.get(later).body, found[1], later)
	}

	got = b.write(path, url.Values{"do": {"rotate"}, "overlap": {"1d"}})
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Contains(t, got.body, "signs, too, for 1 day")
	require.NotContains(t, got.body, found[1])
	require.Equal(t, http.StatusUnprocessableEntity, b.write(path, url.Values{"do": {"rotate"}, "overlap": {"soon"}}).status)

	require.Equal(t, http.StatusSeeOther, b.write(path, url.Values{"do": {"test"}}).status)
	task, err := s.store.DueDeliveries(t.Context(), 1)
	require.NoError(t, err)
	work, err := s.store.ClaimDelivery(t.Context(), task[0])
	require.NoError(t, err)
	_, err = s.store.SettleDelivery(t.Context(), work, tenants.DeliveryResult{Final: true, Status: 500, Why: "the endpoint answered 500", Answer: "<b>broken</b>"})
	require.NoError(t, err)
	got = b.get(path)
	checkHeaders(t, got, path)
	for _, text := range []string{"parked", "The endpoint answered 500.", "&lt;b&gt;broken", work.WebhookID} {
		require.Contains(t, got.body, text)
	}
	require.Contains(t, b.get(path+"?state=delivered").body, "No deliveries")
	require.Equal(t, http.StatusBadRequest, b.get(path+"?state=lost").status)

	require.Equal(t, http.StatusSeeOther, b.write(path, url.Values{"do": {"replay"}, "delivery": {work.ID.String()}}).status)
	require.Contains(t, b.get(path+"?state=pending").body, work.WebhookID)
	require.Equal(t, http.StatusNotFound, b.write(path, url.Values{"do": {"replay"}, "delivery": {e.ID.String()}}).status)

	e, err = s.store.NotificationEndpoint(t.Context(), s.a, e.ID)
	require.NoError(t, err)
	got = b.write(path, url.Values{"do": {"edit"}, "version": {itoa(e.Version)}, "url": {e.URL}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	e, err = s.store.NotificationEndpoint(t.Context(), s.a, e.ID)
	require.NoError(t, err)
	require.Empty(t, e.Types, "no checkbox: all")
	require.False(t, e.Enabled)
	require.Contains(t, b.get(notificationsURL).body, "disabled")
	require.Contains(t, b.get("/audit?kind=notification_endpoint").body, "replayed a delivery to the notification endpoint")

	s.member(s.a, "eve@example.com", tenants.Editor)
	editor := s.as("eve@example.com")
	require.NotContains(t, editor.get(path).body, "Delete endpoint")
	for _, do := range []string{"test", "delete", "rotate", "edit"} {
		require.Equal(t, http.StatusForbidden, editor.write(path, url.Values{"do": {do}}).status, do)
	}
	require.Equal(t, http.StatusSeeOther, b.write(path, url.Values{"do": {"delete"}}).status)
	require.Equal(t, http.StatusNotFound, b.get(path).status)
}

// The address of an endpoint may contain a secret. Members who cannot change it see its host only,
// on every page that has it. The others open it.
func TestAddressesOfEndpointsAreMasked(t *testing.T) {
	s := newStack(t)
	s.members()
	e, _, err := s.store.CreateNotificationEndpoint(t.Context(), s.a, tenants.NotificationEndpoint{URL: "https://hooks.example.com/in/secret-path?token=secret-token", Enabled: true})
	require.NoError(t, err)
	_, err = s.store.TestNotificationEndpoint(t.Context(), s.a, e.ID)
	require.NoError(t, err)
	path := notificationsURL + "/" + e.ID.String()
	for _, role := range tenants.Roles {
		b := s.as("ann@example.com")
		if role != tenants.Owner {
			b = s.as(string(role) + "@example.com")
		}
		for _, page := range []string{notificationsURL, "/audit", "/audit/export?format=json", "/audit/export?format=csv"} {
			got := b.get(page)
			require.NotContains(t, got.body, "secret-", "%s: %s", role, page)
		}
		got := b.get(path)
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, got.body, "https://hooks.example.com/***", role)
		if role == tenants.Owner || role == tenants.Admin {
			require.Contains(t, got.body, "secret-path", role)
		} else {
			require.NotContains(t, got.body, "secret-", role)
		}
	}
}
