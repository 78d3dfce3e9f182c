package tenants

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"weir/internal/tenants/db"
)

// The older versions of a plan in the trail. Few changes write any, so the row of a change has only
// those that it writes. Even these can be too many: a plan has up to 50, each with up to 1000
// limits, which are megabytes. Then the row has the number of their limits and a SHA-256 instead.
// With it, anybody can prove what they were: from the rows of the plan's limits while the version
// was the newest, from an exported document or from a backup.

// maxAuditLimits is the number of limits of older versions up to which a row has them all. With it,
// the row of a deleted plan has at most 256 KiB: one with the longest slugs and numbers takes 165
// bytes for a limit.
const maxAuditLimits = 500

// everyVersion stands for all older versions of a plan. Their numbers begin with 1.
const everyVersion = 0

// auditVersion is an older version of a plan.
type auditVersion struct {
	limits int64
	sha256 string
	text   string // the limits as JSON; "": they are too many
}

// touchVersion records that the change writes an older version of a plan. It is called before the
// write.
func (c *change) touchVersion(ctx context.Context, plan uuid.UUID, number int32) error {
	t, err := c.touch(ctx, auditPlan, plan.String(), false)
	if err != nil || slices.Contains(t.versions, number) {
		return err
	}
	t.versions = append(t.versions, number)
	if c.trail.queued {
		return nil
	}
	return c.trail.readVersionsBefore(ctx, t)
}

// readVersionsBefore reads the written versions that are not known yet, before the writes.
func (t *trail) readVersionsBefore(ctx context.Context, these ...*touched) error {
	read, err := t.readVersions(ctx, these)
	for _, o := range these {
		for number, version := range read[o.id] {
			if _, known := o.versionsBefore[number]; known {
				continue // with its state before an earlier write
			}
			if o.versionsBefore == nil {
				o.versionsBefore = map[int32]auditVersion{}
			}
			o.versionsBefore[number] = version
		}
	}
	return err
}

// readVersions returns the existing ones of the written versions, by plan and number.
func (t *trail) readVersions(ctx context.Context, these []*touched) (map[string]map[int32]auditVersion, error) {
	p := db.AuditPlanVersionsParams{TenantID: t.tenant, Most: maxAuditLimits}
	for _, o := range these {
		numbers := o.versions
		if slices.Contains(numbers, everyVersion) {
			numbers = []int32{everyVersion}
		}
		for _, number := range numbers {
			p.PlanIds, p.Numbers = append(p.PlanIds, uuid.MustParse(o.id)), append(p.Numbers, number)
		}
	}
	if len(p.PlanIds) == 0 {
		return nil, nil
	}
	rows, err := t.queries.AuditPlanVersions(ctx, p)
	if err != nil {
		return nil, err
	}
	out := map[string]map[int32]auditVersion{}
	for _, row := range rows {
		plan := row.PlanID.String()
		if out[plan] == nil {
			out[plan] = map[int32]auditVersion{}
		}
		out[plan][row.Number] = auditVersion{row.Limits, row.Sha256, row.Text}
	}
	return out, nil
}

// addVersions adds the written older versions to the fields of a plan before and after the change.
// A version that exists before and after has the same form in both, so that they can be compared.
func (t *touched) addVersions(before, after auditFields, now map[int32]auditVersion) {
	was, is := auditFields{}, auditFields{}
	for number, version := range t.versionsBefore {
		stays, exists := now[number]
		was[strconv.Itoa(int(number))] = version.encode(version.text != "" && (!exists || stays.text != ""))
	}
	for number, version := range now {
		had, existed := t.versionsBefore[number]
		is[strconv.Itoa(int(number))] = version.encode(version.text != "" && (!existed || had.text != ""))
	}
	updated := before != nil && after != nil // then the row has a null for a version of one side
	if len(was) > 0 || updated && len(is) > 0 {
		before["older_versions"] = was.encode()
	}
	if len(is) > 0 || updated && len(was) > 0 {
		after["older_versions"] = is.encode()
	}
}

// encode returns the version with its limits, or with their number and SHA-256.
func (v *auditVersion) encode(limits bool) json.RawMessage {
	if limits {
		return json.RawMessage(v.text)
	}
	return auditFields{"limits": json.RawMessage(strconv.FormatInt(v.limits, 10)), "sha256": quoted(v.sha256)}.encode()
}
