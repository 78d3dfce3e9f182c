package tenants_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// asMember returns a person with that role in the form of the dashboard: through a session.
func asMember(t *testing.T, d *tenantstest.Database, a tenants.Actor, email string, role tenants.Role) tenants.Actor {
	t.Helper()
	_, err := d.Store.CreateMember(t.Context(), a, email, "correct horse", role)
	require.NoError(t, err)
	person, err := d.Store.VerifyPassword(t.Context(), email, "correct horse")
	require.NoError(t, err)
	token, err := d.Store.StartSession(t.Context(), person, "", "")
	require.NoError(t, err)
	session, err := d.Store.Session(t.Context(), token)
	require.NoError(t, err)
	return session.Actor()
}

// The store enforces the rights of each role, whatever a page offers.
func TestRoles(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	requests := rule("requests")
	_, err := s.CreateRule(t.Context(), a, requests)
	require.NoError(t, err)
	_, err = s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "pro"})
	require.NoError(t, err)
	key, _, err := s.CreateKey(t.Context(), a, tenants.NewAPIKey{Name: "one", Scopes: []tenants.Scope{tenants.ScopeRead}})
	require.NoError(t, err)
	invited, err := s.InviteMember(t.Context(), a, "invited@example.com", tenants.Viewer)
	require.NoError(t, err)
	members := map[tenants.Role]tenants.Actor{}
	for _, role := range tenants.Roles {
		members[role] = asMember(t, d, a, string(role)+"@example.com", role)
	}
	_, secret, err := s.CreateKey(t.Context(), a, tenants.NewAPIKey{Name: "w", Scopes: tenants.AllScopes})
	require.NoError(t, err)
	byKey := d.Actor(secret) // like an admin, who can create one
	soon := time.Now().Add(time.Hour)

	const everybody, editors, managers = "owner admin editor support", "owner admin editor", "owner admin"
	for name, w := range map[string]struct {
		who string // may do it
		do  func(ctx context.Context, m tenants.Actor) error
	}{
		"CreateRule": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.CreateRule(ctx, m, rule("r-"+uuid.NewString()[:8]))
			return err
		}},
		"PutRule": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutRule(ctx, m, requests, tenants.Match{})
			return err
		}},
		"EditRule": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditRule(ctx, m, "requests", tenants.Match{}, func(*limit.Rule) error { return nil })
			return err
		}},
		"DeleteRule": {editors, func(ctx context.Context, m tenants.Actor) error {
			return s.DeleteRule(ctx, m, "nothing", tenants.Match{})
		}},
		"GrantCredits": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.GrantCredits(ctx, m, "somebody", tenants.NewCredits{Rule: "requests", Units: 1})
			return err
		}},
		"RevokeCredits": {editors, func(ctx context.Context, m tenants.Actor) error {
			return s.RevokeCredits(ctx, m, "somebody", uuid.New(), tenants.Match{})
		}},
		"CreateRoute": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.CreateRoute(ctx, m, byHeader("w-"+uuid.NewString()[:8]))
			return err
		}},
		"PutRoute": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutRoute(ctx, m, byHeader("edge"), tenants.Match{})
			return err
		}},
		"EditRoute": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditRoute(ctx, m, "nothing", tenants.Match{}, func(*route.Route) error { return nil })
			return err
		}},
		"DeleteRoute": {editors, func(ctx context.Context, m tenants.Actor) error {
			return s.DeleteRoute(ctx, m, "nothing", tenants.Match{})
		}},
		"CreatePlan": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.CreatePlan(ctx, m, tenants.Plan{Slug: "p-" + uuid.NewString()[:8]})
			return err
		}},
		"PutPlan": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutPlan(ctx, m, tenants.Plan{Slug: "pro"}, tenants.Match{})
			return err
		}},
		"EditPlan": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditPlan(ctx, m, "pro", tenants.Match{}, func(*tenants.Plan) error { return nil })
			return err
		}},
		"DeletePlan": {editors, func(ctx context.Context, m tenants.Actor) error {
			return s.DeletePlan(ctx, m, "nothing", tenants.Match{})
		}},
		"PublishPlan": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.PublishPlan(ctx, m, "pro", nil, tenants.Match{})
			return err
		}},
		"DeletePlanVersion": {editors, func(ctx context.Context, m tenants.Actor) error {
			return s.DeletePlanVersion(ctx, m, "nothing", 1, tenants.Match{})
		}},
		"CreatePlanMigration": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.CreatePlanMigration(ctx, m, tenants.NewPlanMigration{Plan: "nothing"})
			return err
		}},
		"CancelPlanMigration": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.CancelPlanMigration(ctx, m, "pro", uuid.New())
			return err
		}},
		"PutPlanLimit": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutPlanLimit(ctx, m, "pro", "requests", limit.Limit{Limit: 20}, tenants.Match{})
			return err
		}},
		"DeletePlanLimit": {editors, func(ctx context.Context, m tenants.Actor) error {
			return s.DeletePlanLimit(ctx, m, "pro", "nothing", tenants.Match{})
		}},
		"PutSubject": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutSubject(ctx, m, tenants.Subject{Subject: "ada", State: check.Blocked}, tenants.Match{})
			return err
		}},
		"EditSubject": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditSubject(ctx, m, "nobody", tenants.Match{}, func(*tenants.Subject) error { return nil })
			return err
		}},
		"DeleteSubject": {editors, func(ctx context.Context, m tenants.Actor) error {
			return s.DeleteSubject(ctx, m, "nobody", tenants.Match{})
		}},
		"ImportSubjects": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.ImportSubjects(ctx, m, []tenants.SubjectLine{{Line: 1, Subject: "eve"}}, tenants.ImportMode{})
			return err
		}},
		"ApplyDocument": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.ApplyDocument(ctx, m, tenants.Document{}, tenants.Apply{})
			return err
		}},
		"a lasting override": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutOverride(ctx, m, uuid.NewString(), tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 50}}, tenants.Match{})
			return err
		}},
		"an unlimited boost": {editors, func(ctx context.Context, m tenants.Actor) error {
			o := tenants.Override{Rule: "requests", Limit: limit.Limit{Unlimited: true}, ExpiresAt: &soon}
			_, _, err := s.PutOverride(ctx, m, uuid.NewString(), o, tenants.Match{})
			return err
		}},
		"a boost in place of a lasting override": {editors, func(ctx context.Context, m tenants.Actor) error {
			lasting := tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 50}}
			_, _, err := s.PutOverride(ctx, a, "vip", lasting, tenants.Match{})
			require.NoError(t, err)
			_, _, err = s.PutOverride(ctx, m, "vip", tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 60}, ExpiresAt: &soon}, tenants.Match{})
			return err
		}},
		"removing a lasting override": {editors, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutOverride(ctx, a, "old", tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 50}}, tenants.Match{})
			require.NoError(t, err)
			return s.DeleteOverride(ctx, m, "old", "requests", tenants.Match{})
		}},
		"a boost": {everybody, func(ctx context.Context, m tenants.Actor) error {
			o := tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 50}, ExpiresAt: &soon}
			_, _, err := s.PutOverride(ctx, m, "boosted", o, tenants.Match{})
			return err
		}},
		"removing a boost": {everybody, func(ctx context.Context, m tenants.Actor) error {
			o := tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 50}, ExpiresAt: &soon}
			_, _, err := s.PutOverride(ctx, a, "brief", o, tenants.Match{})
			require.NoError(t, err)
			return s.DeleteOverride(ctx, m, "brief", "requests", tenants.Match{})
		}},
		"RecordReset": {everybody, func(ctx context.Context, m tenants.Actor) error {
			return s.RecordReset(ctx, m, tenants.Reset{Subject: "ada", Reason: "asked"}, func(context.Context) ([]string, error) { return nil, nil })
		}},
		"EditSecuritySettings": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditSecuritySettings(ctx, m, tenants.Match{}, func(*tenants.SecuritySettings) error { return nil })
			return err
		}},
		"EditPortal": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditPortal(ctx, m, tenants.Match{}, func(*tenants.Portal) error { return nil })
			return err
		}},
		"CreatePortalLink": {everybody, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.CreatePortalLink(ctx, m, tenants.NewPortalLink{Subject: "ada"})
			return err
		}},
		"DeletePortalLink": {everybody, func(ctx context.Context, m tenants.Actor) error {
			return s.DeletePortalLink(ctx, m, "ada", uuid.New(), tenants.Match{})
		}},
		"ApproveLimitRequest": {everybody, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.ApproveLimitRequest(ctx, m, uuid.New(), tenants.Approval{For: time.Hour})
			return err
		}},
		"RefuseLimitRequest": {everybody, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.RefuseLimitRequest(ctx, m, uuid.New(), "")
			return err
		}},
		"EditTenant": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditTenant(ctx, m, tenants.Match{}, func(*tenants.Tenant) error { return nil })
			return err
		}},
		"CreateKey": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.CreateKey(ctx, m, tenants.NewAPIKey{Name: "k", Scopes: tenants.AllScopes})
			return err
		}},
		"EditKey": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditKey(ctx, m, key.ID, tenants.Match{}, func(*tenants.APIKey) error { return nil })
			return err
		}},
		"RotateKey": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.RotateKey(ctx, m, uuid.New(), 0)
			return err
		}},
		"RevokeKey": {managers, func(ctx context.Context, m tenants.Actor) error {
			return s.RevokeKey(ctx, m, uuid.New(), tenants.Match{})
		}},
		"CreateBillingEndpoint": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.CreateBillingEndpoint(ctx, m, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromCustomer},
				tenants.BillingSecrets{Signing: []string{"whsec_abc"}})
			return err
		}},
		"EditBillingEndpoint": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditBillingEndpoint(ctx, m, uuid.New(), tenants.Match{}, func(*tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
				return tenants.BillingSecrets{}, nil
			})
			return err
		}},
		"DeleteBillingEndpoint": {managers, func(ctx context.Context, m tenants.Actor) error {
			return s.DeleteBillingEndpoint(ctx, m, uuid.New(), tenants.Match{})
		}},
		"CreateNotificationEndpoint": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.CreateNotificationEndpoint(ctx, m, tenants.NotificationEndpoint{URL: "https://example.com/" + uuid.NewString()})
			return err
		}},
		"EditNotificationEndpoint": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditNotificationEndpoint(ctx, m, uuid.New(), tenants.Match{}, func(*tenants.NotificationEndpoint) error { return nil })
			return err
		}},
		"RotateNotificationSecret": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.RotateNotificationSecret(ctx, m, uuid.New(), 0)
			return err
		}},
		"DeleteNotificationEndpoint": {managers, func(ctx context.Context, m tenants.Actor) error {
			return s.DeleteNotificationEndpoint(ctx, m, uuid.New(), tenants.Match{})
		}},
		"TestNotificationEndpoint": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.TestNotificationEndpoint(ctx, m, uuid.New())
			return err
		}},
		"ReplayNotification": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.ReplayNotification(ctx, m, uuid.New())
			return err
		}},
		"PutBillingPrice": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, _, err := s.PutBillingPrice(ctx, m, tenants.BillingPrice{Price: "price_1", Plan: "pro", Endpoint: uuid.New()}, tenants.Match{})
			return err
		}},
		"DeleteBillingPrice": {managers, func(ctx context.Context, m tenants.Actor) error {
			return s.DeleteBillingPrice(ctx, m, "price_none", tenants.Match{})
		}},
		"Reencrypt": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.Reencrypt(ctx, m)
			return err
		}},
		"InviteMember": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.InviteMember(ctx, m, uuid.NewString()+"@example.com", tenants.Admin)
			return err
		}},
		"InviteMember as an owner": {"owner", func(ctx context.Context, m tenants.Actor) error {
			_, err := s.InviteMember(ctx, m, uuid.NewString()+"@example.com", tenants.Owner)
			return err
		}},
		"CreateMember as an owner": {"owner", func(ctx context.Context, m tenants.Actor) error {
			_, err := s.CreateMember(ctx, m, uuid.NewString()+"@example.com", "correct horse", tenants.Owner)
			return err
		}},
		"EditMember": {managers, func(ctx context.Context, m tenants.Actor) error {
			_, err := s.EditMember(ctx, m, invited.ID, tenants.Match{}, func(*tenants.Member) {})
			return err
		}},
		"EditMember into an owner": {"owner", func(ctx context.Context, m tenants.Actor) error {
			other, err := s.InviteMember(ctx, a, uuid.NewString()+"@example.com", tenants.Viewer)
			require.NoError(t, err)
			_, err = s.EditMember(ctx, m, other.ID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Owner })
			return err
		}},
		"RemoveMember that is an owner": {"owner", func(ctx context.Context, m tenants.Actor) error {
			other, err := s.InviteMember(ctx, a, uuid.NewString()+"@example.com", tenants.Owner)
			require.NoError(t, err)
			return s.RemoveMember(ctx, m, other.ID, tenants.Match{})
		}},
		"RemoveMember": {managers, func(ctx context.Context, m tenants.Actor) error {
			return s.RemoveMember(ctx, m, uuid.New(), tenants.Match{})
		}},
	} {
		require.Equal(t, w.who == "owner", isForbidden(w.do(t.Context(), byKey)), "%s by a key", name)
		for _, role := range tenants.Roles {
			err := w.do(t.Context(), members[role])
			if slices.Contains([]string{"a lasting override", "an unlimited boost"}, name) && role == tenants.Support {
				var wrong *tenants.InvalidError // a valid value of a field exists
				require.ErrorAs(t, err, &wrong, "%s as %s", name, role)
				continue
			}
			allowed := slices.Contains(strings.Fields(w.who), string(role))
			require.Equal(t, !allowed, isForbidden(err), "%s as %s: %v", name, role, err)
		}
	}
}

// A person who manages the operator's own tenant is the operator; members of it with fewer rights
// are not.
func TestOperatorsAreMembersOfThePlatform(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	own := tenants.AsSystem(platform.ID, "test")
	for role, operator := range map[tenants.Role]bool{tenants.Owner: true, tenants.Admin: true, tenants.Editor: false, tenants.Support: false, tenants.Viewer: false} {
		m := asMember(t, d, own, string(role)+"@example.org", role)
		require.Equal(t, operator, m.Operator(), role)
		_, _, err := d.Store.ListTenants(t.Context(), m, tenants.TenantFilter{}, tenants.Page{})
		require.Equal(t, !operator, err != nil, "%s: %v", role, err)
		require.False(t, asMember(t, d, a, string(role)+"@example.net", role).Operator(), "%s of another tenant", role)
	}
}

func isForbidden(err error) bool { return errors.Is(err, tenants.ErrForbidden) }
