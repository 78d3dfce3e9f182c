package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

// An editor changes the plan of a subject now, at the end of its cycle or at a time, and
// cancels what is scheduled, from the page of the subject or from the list. Each message says
// what happened, and undoing it restores what was.
func TestChangePlanOnPages(t *testing.T) {
	s := newStack(t)
	s.staff()
	for slug, name := range map[string]string{"basic": "Basic", "gold": "Gold"} {
		_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: slug, Name: name})
		require.NoError(t, err)
	}
	b := s.as("editor@example.com")
	plan := func(pairs ...string) url.Values {
		form := url.Values{"do": {"plan"}, "reason": {"agreed"}}
		for i := 0; i < len(pairs); i += 2 {
			form.Set(pairs[i], pairs[i+1])
		}
		return form
	}
	says := func(form url.Values, text string) {
		t.Helper()
		got := b.write("/subjects/vandelay", form)
		require.Equal(t, http.StatusSeeOther, got.status, "%s", got.body)
		require.Contains(t, b.get("/subjects/vandelay").body, text)
	}
	next := func() (string, *time.Time) {
		t.Helper()
		got, err := s.store.SubjectByName(t.Context(), s.a, "vandelay")
		require.NoError(t, err)
		return got.NextPlan, got.NextPlanAt
	}

	says(plan("plan", "gold", "when", "now"), "Plan of vandelay changed to Gold.")
	says(plan("plan", "gold", "when", "now"), "vandelay has the plan Gold already. Nothing changed.")
	says(plan("plan", "basic", "when", "cycle_end"), "Plan of vandelay changes to Basic at ")
	slug, at := next()
	require.Equal(t, "basic", slug)
	require.True(t, at.Equal(tenants.CycleEnd(nil, s.clock.Now())), at)
	says(plan("plan", "gold", "when", "now"), "The change of vandelay to Basic is cancelled. The plan stays Gold.")
	_, at = next()
	require.Nil(t, at)
	says(plan("plan", "basic", "when", "at", "next_plan_at", "2099-01-01T00:00"), "Plan of vandelay changes to Basic at ")
	says(plan("plan", "", "when", "now"), "Plan of vandelay changed to the default plan. The scheduled change to Basic is cancelled.")
	for pointer, form := range map[string]url.Values{
		"Enter a time, or choose another moment.": plan("plan", "gold", "when", "at"),
		"Choose “At a time”, or clear the time.":  plan("plan", "gold", "when", "now", "next_plan_at", "2099-01-01T00:00"),
		"Choose a plan, or clear the time.":       plan("when", "cycle_end"),
	} {
		got := b.write("/subjects/vandelay", form)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, pointer)
		require.Contains(t, got.body, pointer)
	}

	says(plan("plan", "gold", "when", "at", "next_plan_at", "2099-01-01T00:00"), "Cancel change")
	require.Contains(t, b.get("/plans").body, "Cancel the change of vandelay")
	require.NotContains(t, s.as("viewer@example.com").get("/plans").body, "Cancel the change of vandelay")
	require.Equal(t, http.StatusForbidden, s.as("viewer@example.com").write("/plans/changes/cancel", url.Values{"subject": {"vandelay"}}).status)
	require.Equal(t, http.StatusSeeOther, b.write("/plans/changes/cancel", url.Values{"subject": {"vandelay"}}).status)
	page := b.get("/plans").body
	require.Contains(t, page, "The change of vandelay to Gold is cancelled.")
	require.Contains(t, page, ">Undo<")
	_, at = next()
	require.Nil(t, at)
	says(plan("plan", "gold", "when", "at", "next_plan_at", "2099-01-01T00:00:00Z"), "Next plan")
	says(url.Values{"do": {"cancel-plan"}, "reason": {cancelReason}}, "The change of vandelay to Gold is cancelled.")
	require.Equal(t, http.StatusNotFound, b.write("/plans/changes/cancel", url.Values{"subject": {"nobody"}}).status)
}

// A billing event with a later time is among the changes to come, with a link to the event.
func TestEventsAmongPlanChanges(t *testing.T) {
	s := newStack(t)
	s.staff()
	_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: "gold", Name: "Gold"})
	require.NoError(t, err)
	endpoint, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{Provider: tenants.GenericProvider, SubjectFrom: tenants.FromCustomer},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	require.NoError(t, err)
	for id, body := range map[string]string{
		"msg_1": `{"type":"subject.plan","subject":"umbrella","plan":"gold","effective_at":"2099-12-02T09:00:00Z"}`,
		"msg_2": `{"type":"subject.plan","subject":"umbrella","plan":"gold","effective_at":"2099-12-02T09:00:00Z"}`,
		"msg_3": `{"type":"subject.plan","subject":"umbrella","plan":"none","effective_at":"2099-12-02T09:00:00Z"}`,
	} {
		e, err := subscription.ParseGeneric([]byte(body), id, time.Now(), time.Now())
		require.NoError(t, err)
		_, err = s.store.StoreBillingEvent(t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: endpoint.ID}, e, []byte(body))
		require.NoError(t, err)
	}
	require.NoError(t, billing.New(billing.Options{Store: s.store}).Once(t.Context()))
	at := time.Date(2099, 12, 3, 0, 0, 0, 0, time.UTC)
	_, _, err = s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "umbrella", NextPlan: "gold", NextPlanAt: &at}, tenants.Match{})
	require.NoError(t, err)

	var all []tenants.ScheduledPlan
	for page := (tenants.Page{Limit: 1}); ; {
		list, next, err := s.store.ScheduledPlans(t.Context(), s.a, page)
		require.NoError(t, err)
		all = append(all, list...)
		if page.After = next; next == "" {
			break
		}
	}
	require.Len(t, all, 3, "the plan of one event does not exist")
	require.NotEqual(t, all[0].Event, all[1].Event)
	require.Zero(t, all[2].Event)
	of, err := s.store.ScheduledPlansOf(t.Context(), s.a, "umbrella", 10)
	require.NoError(t, err)
	require.Equal(t, all, of)
	of, err = s.store.ScheduledPlansOf(t.Context(), s.a, "other", 10)
	require.NoError(t, err)
	require.Empty(t, of)

	b := s.as("ann@example.com")
	link := `href="/billing/events?pick=` + all[0].Event.String() + `"`
	require.Contains(t, b.get("/plans").body, link)
	require.Contains(t, b.get("/subjects/umbrella").body, link)
	_, err = s.store.DismissBillingEvent(t.Context(), s.a, all[0].Event)
	require.NoError(t, err)
	require.NotContains(t, b.get("/plans").body, link)
}

// The form of a plan says which limits the subject would be over.
func TestOverWithAnotherPlan(t *testing.T) {
	s := newStack(t)
	s.staff()
	_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: "gold", Name: "Gold"})
	require.NoError(t, err)
	b := s.as("editor@example.com")
	require.Contains(t, b.get("/subjects/user_7").body, `hx-get="/subjects/user_7?fragment=over"`)
	require.Contains(t, b.get("/subjects/user_7?fragment=over&plan=gold").body, "With the plan Gold, the subject would be over no limit now.")
	require.NotContains(t, b.get("/subjects/user_7?fragment=over&plan=").body, "over no limit")
	require.NotContains(t, b.get("/subjects/user_7?fragment=over&plan=unknown").body, "over no limit")
}

// Previews that read up to 2000 counters each have the few places of previews. Before, a member ran
// as many at once as it had requests.
func TestPreviewsOfCountersHavePlaces(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	previews := map[string]func() page{
		"limit": func() page {
			return b.post("/plans/free/limits/requests/preview", s.planForm("kind", "number", "limit", "7"))
		},
		"subject": func() page { return b.get("/subjects/user_7?fragment=over&plan=free") },
	}
	end, err := s.checker.BeginPreview(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	for name, preview := range previews {
		got := preview()
		require.Equal(t, http.StatusServiceUnavailable, got.status, name)
		require.Contains(t, got.body, "Too many previews", name)
		require.NotEmpty(t, got.header.Get("Retry-After"), name)
	}
	end()
	for range 2 { // each leaves its place
		for name, preview := range previews {
			require.Equal(t, http.StatusOK, preview().status, name)
		}
	}
}
