package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// The writes of a change, which hide those of db.Queries. Each records first which object it
// writes, so every write within a change also writes the trail. TestEveryWriteIsAudited fails for a
// write that does not.

// NextVersion gives the change its number.
func (c *change) NextVersion(ctx context.Context, p db.NextVersionParams) (int64, error) {
	c.trail.numbered = true
	return c.Queries.NextVersion(ctx, p)
}

// InsertRule creates a rule.
func (c *change) InsertRule(ctx context.Context, p db.InsertRuleParams) (row db.Rule, err error) {
	if _, err = c.touch(ctx, auditRule, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertRule(ctx, p)
	}
	return row, err
}

// UpdateRule replaces a rule.
func (c *change) UpdateRule(ctx context.Context, p db.UpdateRuleParams) (row db.Rule, err error) {
	if _, err = c.touch(ctx, auditRule, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdateRule(ctx, p)
	}
	return row, err
}

// DeleteRule deletes a rule with the limits that plans and subjects have for it. They are part of
// the rule's row, because thousands of subjects would need thousands of rows.
func (c *change) DeleteRule(ctx context.Context, p db.DeleteRuleParams) error {
	t, err := c.touch(ctx, auditRule, p.ID.String(), false)
	if err != nil {
		return err
	}
	object, err := c.trail.queries.AuditRuleUse(ctx, db.AuditRuleUseParams{TenantID: p.TenantID, RuleID: p.ID, Most: maxAuditLimits})
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(object), &t.before); err != nil { // adds to the existing fields
		return err
	}
	return c.Queries.DeleteRule(ctx, p)
}

// InsertRoute creates a route.
func (c *change) InsertRoute(ctx context.Context, p db.InsertRouteParams) (row db.Route, err error) {
	if _, err = c.touch(ctx, auditRoute, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertRoute(ctx, p)
	}
	return row, err
}

// UpdateRoute replaces a route.
func (c *change) UpdateRoute(ctx context.Context, p db.UpdateRouteParams) (row db.Route, err error) {
	if _, err = c.touch(ctx, auditRoute, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdateRoute(ctx, p)
	}
	return row, err
}

// DeleteRoute deletes a route.
func (c *change) DeleteRoute(ctx context.Context, p db.DeleteRouteParams) error {
	if _, err := c.touch(ctx, auditRoute, p.ID.String(), false); err != nil {
		return err
	}
	return c.Queries.DeleteRoute(ctx, p)
}

// InsertPlanMigration creates a migration.
func (c *change) InsertPlanMigration(ctx context.Context, p db.InsertPlanMigrationParams) (row db.PlanMigration, err error) {
	if _, err = c.touch(ctx, auditMigration, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertPlanMigration(ctx, p)
	}
	return row, err
}

// UpdatePlanMigration records the progress of a migration.
func (c *change) UpdatePlanMigration(ctx context.Context, p db.UpdatePlanMigrationParams) error {
	if _, err := c.touch(ctx, auditMigration, p.ID.String(), false); err != nil {
		return err
	}
	return c.Queries.UpdatePlanMigration(ctx, p)
}

// CountMigrated records the progress of a migration.
func (c *change) CountMigrated(ctx context.Context, p db.CountMigratedParams) error {
	if _, err := c.touch(ctx, auditMigration, p.ID.String(), false); err != nil {
		return err
	}
	return c.Queries.CountMigrated(ctx, p)
}

// MigrateSubjects changes the plan of subjects.
func (c *change) MigrateSubjects(ctx context.Context, p db.MigrateSubjectsParams) error {
	if err := c.touchSubjects(ctx, p.Subjects); err != nil {
		return err
	}
	return c.Queries.MigrateSubjects(ctx, p)
}

// ScheduleMigration schedules the next plan of subjects.
func (c *change) ScheduleMigration(ctx context.Context, p db.ScheduleMigrationParams) error {
	if err := c.touchSubjects(ctx, p.Subjects); err != nil {
		return err
	}
	return c.Queries.ScheduleMigration(ctx, p)
}

// CancelMigrationOf cancels the scheduled plan of subjects.
func (c *change) CancelMigrationOf(ctx context.Context, p db.CancelMigrationOfParams) error {
	if err := c.touchSubjects(ctx, p.Subjects); err != nil {
		return err
	}
	return c.Queries.CancelMigrationOf(ctx, p)
}

// touchSubjects records registered subjects, and reads them all at once.
func (c *change) touchSubjects(ctx context.Context, subjects []string) error {
	if c.trail == nil {
		return errors.New("a change has no audit trail")
	}
	recorded := make([]*touched, len(subjects))
	for i, subject := range subjects {
		recorded[i] = c.trail.record(auditSubject, subject, false)
	}
	return c.trail.readBefore(ctx, recorded...)
}

// InsertKey creates a key.
func (c *change) InsertKey(ctx context.Context, p db.InsertKeyParams) (row db.ApiKey, err error) {
	if _, err = c.touch(ctx, auditKey, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertKey(ctx, p)
	}
	return row, err
}

// UpdateKey edits, revokes or rotates a key. Only active keys are edited or rotated, so a key that
// is revoked or replaced after the write was not before.
func (c *change) UpdateKey(ctx context.Context, p db.UpdateKeyParams) (row db.ApiKey, err error) {
	t, err := c.touch(ctx, auditKey, p.ID.String(), false)
	if err != nil {
		return row, err
	}
	switch {
	case p.RevokedAt != nil: // a replaced key can still be revoked
		t.action = "revoke"
	case p.RotatedTo != nil:
		t.action = "rotate"
	}
	return c.Queries.UpdateKey(ctx, p)
}

// UpdateTenantName renames a tenant.
func (c *change) UpdateTenantName(ctx context.Context, p db.UpdateTenantNameParams) (row db.Tenant, err error) {
	if _, err = c.touch(ctx, auditTenant, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdateTenantName(ctx, p)
	}
	return row, err
}

// UpdateTenant changes a tenant's name and state.
func (c *change) UpdateTenant(ctx context.Context, p db.UpdateTenantParams) (row db.Tenant, err error) {
	if _, err = c.touch(ctx, auditTenant, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdateTenant(ctx, p)
	}
	return row, err
}

// InsertTenant creates a tenant.
func (c *change) InsertTenant(ctx context.Context, p db.InsertTenantParams) (row db.Tenant, err error) {
	if _, err = c.touch(ctx, auditTenant, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertTenant(ctx, p)
	}
	return row, err
}

// DeleteTenant deletes a tenant for everybody who reads tenants. Its members go at once, and its
// other rows later (DeleteTenantRows), so that this does not take longer the more they are. Its
// trail is deleted, too; the end of the trail is kept.
func (c *change) DeleteTenant(ctx context.Context, id uuid.UUID) error {
	t, err := c.touch(ctx, auditTenant, id.String(), false)
	if err != nil {
		return err
	}
	head, err := c.AuditHead(ctx, id)
	switch {
	case err == nil:
		mark := AuditMark{Sequence: head.Sequence, Hash: [32]byte(head.Hash)}
		t.before["audit_head"] = json.RawMessage(strconv.Quote(mark.String()))
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	if err := c.LeaveDeletedTenant(ctx, &id); err != nil {
		return err
	}
	if err := c.deleteMembers(ctx, id); err != nil {
		return err
	}
	if err := c.SeeDeletedTenants(ctx, "on"); err != nil { // otherwise nobody may make a row that they do not see
		return err
	}
	if err := c.MarkTenantDeleted(ctx, id); err != nil {
		return err
	}
	return c.SeeDeletedTenants(ctx, "")
}

// deleteMembers deletes the members of a tenant in a change by the operator.
func (c *change) deleteMembers(ctx context.Context, of uuid.UUID) error {
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp); err != nil {
		return err
	}
	if err := c.SetTenant(ctx, of.String()); err != nil {
		return err
	}
	if err := c.DeleteMembersOf(ctx, of); err != nil {
		return err
	}
	_, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleSystem)
	return err
}

// UpsertMember makes a person a member or gives a member a role.
func (c *change) UpsertMember(ctx context.Context, p db.UpsertMemberParams) (row db.Member, err error) {
	if _, err = c.touch(ctx, auditMember, p.PersonID.String(), false); err == nil {
		row, err = c.Queries.UpsertMember(ctx, p)
	}
	return row, err
}

// UpdateMemberRole gives a member a role.
func (c *change) UpdateMemberRole(ctx context.Context, p db.UpdateMemberRoleParams) (row db.Member, err error) {
	if err = c.touchMember(ctx, p.TenantID, p.ID); err == nil {
		row, err = c.Queries.UpdateMemberRole(ctx, p)
	}
	return row, err
}

// DeleteMember removes a person from a tenant.
func (c *change) DeleteMember(ctx context.Context, p db.DeleteMemberParams) error {
	if err := c.touchMember(ctx, p.TenantID, p.ID); err != nil {
		return err
	}
	return c.Queries.DeleteMember(ctx, p)
}

// touchMember records a member, by the id of the person, because a new member has no id yet.
func (c *change) touchMember(ctx context.Context, tenant, id uuid.UUID) error {
	people, err := c.trail.queries.AuditMemberPerson(ctx, db.AuditMemberPersonParams{TenantID: tenant, ID: id})
	if err != nil {
		return err
	}
	for _, person := range people {
		if _, err := c.touch(ctx, auditMember, person.String(), false); err != nil {
			return err
		}
	}
	return nil
}

// InsertBillingEndpoint creates an endpoint.
func (c *change) InsertBillingEndpoint(ctx context.Context, p db.InsertBillingEndpointParams) (row db.BillingEndpoint, err error) {
	if _, err = c.touch(ctx, auditEndpoint, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertBillingEndpoint(ctx, p)
	}
	return row, err
}

// UpdateBillingEndpoint replaces an endpoint.
func (c *change) UpdateBillingEndpoint(ctx context.Context, p db.UpdateBillingEndpointParams) (row db.BillingEndpoint, err error) {
	if _, err = c.touch(ctx, auditEndpoint, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdateBillingEndpoint(ctx, p)
	}
	return row, err
}

// DeleteBillingEndpoint deletes an endpoint.
func (c *change) DeleteBillingEndpoint(ctx context.Context, p db.DeleteBillingEndpointParams) error {
	if _, err := c.touch(ctx, auditEndpoint, p.ID.String(), false); err != nil {
		return err
	}
	return c.Queries.DeleteBillingEndpoint(ctx, p)
}

// RequestBillingReconcile makes a server compare an endpoint with its provider.
func (c *change) RequestBillingReconcile(ctx context.Context, p db.RequestBillingReconcileParams) (int64, error) {
	c.trail.actions = append(c.trail.actions, auditRow{action: "compare", kind: auditEndpoint, target: p.ID.String()})
	return c.Queries.RequestBillingReconcile(ctx, p)
}

// UpsertBillingPrice maps a price to a plan.
func (c *change) UpsertBillingPrice(ctx context.Context, p db.UpsertBillingPriceParams) (row db.BillingPrice, err error) {
	if _, err = c.touch(ctx, auditPrice, p.Price, false); err == nil {
		row, err = c.Queries.UpsertBillingPrice(ctx, p)
	}
	return row, err
}

// DeleteBillingPrice removes the mapping of a price.
func (c *change) DeleteBillingPrice(ctx context.Context, p db.DeleteBillingPriceParams) error {
	if _, err := c.touch(ctx, auditPrice, p.Price, false); err != nil {
		return err
	}
	return c.Queries.DeleteBillingPrice(ctx, p)
}

// UpsertPortal writes the settings of the customer page.
func (c *change) UpsertPortal(ctx context.Context, p db.UpsertPortalParams) (row db.Portal, err error) {
	if _, err = c.touch(ctx, auditPortal, p.TenantID.String(), false); err == nil {
		row, err = c.Queries.UpsertPortal(ctx, p)
	}
	return row, err
}

// UpsertSecuritySettings writes the settings of sessions and security events.
func (c *change) UpsertSecuritySettings(ctx context.Context, p db.UpsertSecuritySettingsParams) (row db.SecuritySetting, err error) {
	if _, err = c.touch(ctx, auditSecurity, p.TenantID.String(), false); err == nil {
		row, err = c.Queries.UpsertSecuritySettings(ctx, p)
	}
	return row, err
}

// InsertPortalLink creates a link to the page of a customer.
func (c *change) InsertPortalLink(ctx context.Context, p db.InsertPortalLinkParams) (row db.PortalLink, err error) {
	if _, err = c.touch(ctx, auditLink, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertPortalLink(ctx, p)
	}
	return row, err
}

// DeletePortalLink revokes a link, with its sessions.
func (c *change) DeletePortalLink(ctx context.Context, p db.DeletePortalLinkParams) error {
	if _, err := c.touch(ctx, auditLink, p.ID.String(), false); err != nil {
		return err
	}
	return c.Queries.DeletePortalLink(ctx, p)
}

// InsertLimitRequest creates a customer's request.
func (c *change) InsertLimitRequest(ctx context.Context, p db.InsertLimitRequestParams) (row db.LimitRequest, err error) {
	if _, err = c.touch(ctx, auditRequest, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertLimitRequest(ctx, p)
	}
	return row, err
}

// UpdateLimitRequest settles a customer's request.
func (c *change) UpdateLimitRequest(ctx context.Context, p db.UpdateLimitRequestParams) (row db.LimitRequest, err error) {
	if _, err = c.touch(ctx, auditRequest, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdateLimitRequest(ctx, p)
	}
	return row, err
}

// InsertNotificationEndpoint creates an endpoint for notifications.
func (c *change) InsertNotificationEndpoint(ctx context.Context, p db.InsertNotificationEndpointParams) (row db.NotificationEndpoint, err error) {
	if _, err = c.touch(ctx, auditNotified, p.ID.String(), true); err == nil {
		row, err = c.Queries.InsertNotificationEndpoint(ctx, p)
	}
	return row, err
}

// UpdateNotificationEndpoint replaces an endpoint for notifications.
func (c *change) UpdateNotificationEndpoint(ctx context.Context, p db.UpdateNotificationEndpointParams) (row db.NotificationEndpoint, err error) {
	if _, err = c.touch(ctx, auditNotified, p.ID.String(), false); err == nil {
		row, err = c.Queries.UpdateNotificationEndpoint(ctx, p)
	}
	return row, err
}

// DeleteNotificationEndpoint deletes an endpoint for notifications.
func (c *change) DeleteNotificationEndpoint(ctx context.Context, p db.DeleteNotificationEndpointParams) error {
	if _, err := c.touch(ctx, auditNotified, p.ID.String(), false); err != nil {
		return err
	}
	return c.Queries.DeleteNotificationEndpoint(ctx, p)
}
