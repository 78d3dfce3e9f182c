package tenants

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"weir/internal/tenants/db"
)

// The kinds of objects in a trail.
const (
	auditTenant    = "tenant"
	auditKey       = "key"
	auditRule      = "rule"
	auditRoute     = "route"
	auditPlan      = "plan"    // with its limits, and the older versions that the change writes
	auditSubject   = "subject" // with its overrides
	auditMember    = "member"
	auditEndpoint  = "endpoint"      // of a billing system
	auditPrice     = "price"         // of a billing system
	auditEvent     = "billing_event" // that somebody dismissed or replayed
	auditMigration = "migration"     // of subjects to a plan
	auditPortal    = "portal"        // settings of the page for customers
	auditLink      = "portal_link"   // to that page
	auditRequest   = "limit_request" // of a customer, for a higher limit
	auditNotified  = "notification_endpoint"
	auditSecurity  = "security" // settings of sessions and security events
	auditCredits   = "credits"  // a grant of prepaid units
)

// auditKinds lists the kinds.
var auditKinds = []string{auditTenant, auditKey, auditRule, auditRoute, auditPlan, auditSubject, auditMember, auditEndpoint, auditPrice, auditEvent, auditMigration,
	auditPortal, auditLink, auditRequest, auditCredits, auditNotified, auditSecurity}

// trail records during a change which objects it writes, with their state before. At the end it
// reads them again, and the differences are the rows of the trail. The writes themselves need not
// report their changes.
type trail struct {
	queries  *db.Queries // that read immediately, also if the change queues its writes
	tenant   uuid.UUID
	touched  []*touched // in the order of the writes
	index    map[auditName]*touched
	numbered bool       // the change has a version
	queued   bool       // the writes are queued, so the state before them can be read later, all at once
	actions  []auditRow // that change no object, such as a test
	full     *auditRow  // the row of an import, which has already written the rows of its subjects
}

func newTrail(q *db.Queries, tenant uuid.UUID) *trail {
	return &trail{queries: q, tenant: tenant, index: map[auditName]*touched{}}
}

type auditName struct{ kind, id string }

// touched is an object that a change writes.
type touched struct {
	auditName
	action string // "" if it follows from before and after
	reason string
	target string
	before auditFields // nil if the object did not exist
	unread bool        // before is still to be read
	beside auditFields // what the row says in addition to the object after the change
	// versions are the written older versions of a plan, and versionsBefore their state before, by
	// number.
	versions       []int32
	versionsBefore map[int32]auditVersion
}

// auditFields is an object by fields. Postgres writes equal jsonb values equally.
type auditFields map[string]json.RawMessage

type auditObject struct {
	target string
	fields auditFields
}

// touch records that the change writes an object. It is called before the write; isNew means that
// the object does not exist yet.
func (c *change) touch(ctx context.Context, kind, id string, isNew bool) (*touched, error) {
	if c.trail == nil {
		return nil, errors.New("a change has no audit trail")
	}
	if t := c.trail.index[auditName{kind, id}]; t != nil {
		return t, nil
	}
	t := c.trail.record(kind, id, isNew)
	if c.trail.queued {
		return t, nil
	}
	return t, c.trail.readBefore(ctx, t)
}

// record adds an object that was not recorded yet. Its state before must still be read, if it
// existed.
func (t *trail) record(kind, id string, isNew bool) *touched {
	o := &touched{auditName: auditName{kind, id}, unread: !isNew}
	t.index[o.auditName] = o
	t.touched = append(t.touched, o)
	return o
}

// readBefore reads the missing states before the writes of these objects.
func (t *trail) readBefore(ctx context.Context, these ...*touched) error {
	ids := map[string][]string{}
	for _, o := range these {
		if o.unread {
			ids[o.kind] = append(ids[o.kind], o.id)
		}
	}
	for kind, list := range ids {
		objects, err := auditObjects(ctx, t.queries, t.tenant, kind, list)
		if err != nil {
			return err
		}
		for _, id := range list {
			o, object := t.index[auditName{kind, id}], objects[id]
			if o.before == nil {
				o.before = object.fields
			} else { // some fields are known already
				for name, value := range object.fields {
					o.before[name] = value
				}
			}
			o.target, o.unread = object.target, false
		}
	}
	return t.readVersionsBefore(ctx, these...)
}

// rows returns the rows of the change, one for each object that differs.
func (t *trail) rows(ctx context.Context) ([]auditRow, error) {
	if t.full != nil {
		if len(t.touched) > 0 {
			return nil, errors.New("an import must be the only part of a change")
		}
		return []auditRow{*t.full}, nil
	}
	if t.numbered && len(t.touched) == 0 {
		return nil, errors.New("a change of configuration is not in the audit trail")
	}
	ids := map[string][]string{}
	for _, o := range t.touched {
		ids[o.kind] = append(ids[o.kind], o.id)
	}
	after := map[string]map[string]auditObject{}
	for kind, list := range ids {
		objects, err := auditObjects(ctx, t.queries, t.tenant, kind, list)
		if err != nil {
			return nil, err
		}
		after[kind] = objects
	}
	versions, err := t.readVersions(ctx, t.touched)
	if err != nil {
		return nil, err
	}
	var rows []auditRow
	for _, o := range t.foldRotation(after[auditKey]) {
		if o.kind == auditPlan {
			o.addVersions(o.before, after[o.kind][o.id].fields, versions[o.id])
		}
		row, err := o.row(after[o.kind][o.id])
		if err != nil {
			return nil, err
		}
		if row.before != nil || row.after != nil {
			rows = append(rows, row)
		}
	}
	return append(rows, t.actions...), nil
}

// foldRotation merges the key that a rotation created into the row of the key that it replaces,
// because a rotation is one change. It returns the remaining objects.
func (t *trail) foldRotation(keys map[string]auditObject) []*touched {
	folded := map[string]bool{}
	for _, o := range t.touched {
		if o.kind != auditKey || o.action != "rotate" {
			continue
		}
		var next string
		if json.Unmarshal(keys[o.id].fields["rotated_to"], &next) == nil {
			keys[o.id].fields["new_key"] = keys[next].fields.encode()
			folded[next] = true
		}
	}
	var rest []*touched
	for _, o := range t.touched {
		if o.kind != auditKey || !folded[o.id] {
			rest = append(rest, o)
		}
	}
	return rest
}

func (t *touched) row(now auditObject) (row auditRow, err error) {
	row = auditRow{action: t.action, kind: t.kind, target: t.target, reason: t.reason}
	if row.target == "" {
		row.target = now.target
	}
	var action string
	before, after := t.before, now.fields
	switch {
	case before == nil && after == nil:
		return row, nil
	case before == nil:
		action = "create"
	case after == nil:
		action = "delete"
	default:
		action = "update"
		if before, after = difference(before, after); len(before) == 0 {
			return row, nil
		}
	}
	if row.action == "" {
		row.action = action
	}
	if before != nil {
		if row.before, err = json.Marshal(before); err != nil {
			return row, err
		}
	}
	if after != nil {
		maps.Copy(after, t.beside)
		row.after, err = json.Marshal(after)
	}
	return row, err
}

// difference returns the fields that differ, with null for a missing field. It compares fields that
// are objects, such as the limits of a plan, recursively.
func difference(before, after auditFields) (b, a auditFields) {
	b, a = auditFields{}, auditFields{}
	null := json.RawMessage("null")
	for name, old := range before {
		now, stays := after[name]
		switch {
		case !stays:
			b[name], a[name] = old, null
		case bytes.Equal(old, now):
		default:
			b[name], a[name] = old, now
			var oldFields, nowFields auditFields
			if json.Unmarshal(old, &oldFields) == nil && json.Unmarshal(now, &nowFields) == nil {
				oldFields, nowFields = difference(oldFields, nowFields)
				b[name], a[name] = oldFields.encode(), nowFields.encode()
			}
		}
	}
	for name, now := range after {
		if _, was := before[name]; !was {
			b[name], a[name] = null, now
		}
	}
	return b, a
}

func (f auditFields) encode() json.RawMessage {
	encoded, err := json.Marshal(f)
	if err != nil {
		panic(fmt.Sprintf("tenants: encode fields that were read as JSON: %v", err))
	}
	return encoded
}

// auditNames are the columns with another name in the API. A column with an empty name is not in
// the trail, because another field has the same information.
var auditNames = map[string]string{
	"tenant_id": "", "id": "", "plan_id": "", "next_plan_id": "", "created_at": "", "updated_at": "", "version": "",
	"is_default": "default", "migration_id": "migration", "published_at": "", "has_credits": "",
}

// fieldOfColumn returns the name of a column in the API: limit_units is limit. A duration has two
// columns, window_text and window_ms; the trail has only the text.
func fieldOfColumn(column string) string {
	if name, renamed := auditNames[column]; renamed {
		return name
	}
	if strings.HasSuffix(column, "_ms") {
		return ""
	}
	for _, suffix := range []string{"_units", "_values", "_text"} {
		if name, found := strings.CutSuffix(column, suffix); found {
			return name
		}
	}
	return column
}

// auditFieldsOf parses an object from the database. Empty fields are omitted, like null.
func auditFieldsOf(kind, object string) (auditFields, error) {
	var columns, fields auditFields
	if err := json.Unmarshal([]byte(object), &columns); err != nil {
		return nil, fmt.Errorf("read a %s for the audit trail: %w", kind, err)
	}
	fields = make(auditFields, len(columns))
	for name, value := range columns {
		if kind == auditRule || kind == auditRoute || kind == auditPlan || kind == auditSubject {
			name = fieldOfColumn(name)
		}
		if string(value) == "1" && (name == "multiplier" || name == "plan_version" || name == "newest_version") { // nearly all have 1
			continue
		}
		if text := string(value); name != "" && text != `""` && text != "{}" {
			fields[name] = spellTimes(name, value)
		}
	}
	return fields, nil
}

// overrideTime matches a time of an override in the JSON of Postgres. Quotes within texts are
// escaped, so a reason cannot match.
var overrideTime = regexp.MustCompile(`("(?:starts|expires)_at": ?"[0-9T:.-]+)\+00:00"`)

// spellTimes converts the times of a field to the form of the API, with Z; Postgres writes +00:00.
// Existing rows stay unchanged, because their hashes include the text.
func spellTimes(name string, value json.RawMessage) json.RawMessage {
	switch {
	case strings.HasSuffix(name, "_at"):
		if digits, utc := bytes.CutSuffix(value, []byte(`+00:00"`)); utc {
			return slices.Concat(digits, []byte(`Z"`))
		}
	case name == "overrides":
		return overrideTime.ReplaceAll(value, []byte(`${1}Z"`))
	}
	return value
}

// auditObjects reads the existing objects of one kind.
func auditObjects(ctx context.Context, q *db.Queries, tenant uuid.UUID, kind string, names []string) (map[string]auditObject, error) {
	objects := make(map[string]auditObject, len(names))
	var failed error
	add := func(id, target, object string) {
		fields, err := auditFieldsOf(kind, object)
		failed = errors.Join(failed, err)
		objects[id] = auditObject{target, fields}
	}
	var ids []uuid.UUID
	if kind != auditSubject && kind != auditPrice {
		for _, name := range names {
			ids = append(ids, uuid.MustParse(name)) // touch got the id as text
		}
	}
	var err error
	switch kind {
	case auditTenant:
		err = eachRow(q.AuditTenants(ctx, ids))(func(r db.AuditTenantsRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditKey:
		err = eachRow(q.AuditKeys(ctx, db.AuditKeysParams{TenantID: tenant, Ids: ids}))(func(r db.AuditKeysRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditRule:
		err = eachRow(q.AuditRules(ctx, db.AuditRulesParams{TenantID: tenant, Ids: ids}))(func(r db.AuditRulesRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditRoute:
		err = eachRow(q.AuditRoutes(ctx, db.AuditRoutesParams{TenantID: tenant, Ids: ids}))(func(r db.AuditRoutesRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditPlan:
		err = eachRow(q.AuditPlans(ctx, db.AuditPlansParams{TenantID: tenant, Ids: ids}))(func(r db.AuditPlansRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditSubject:
		err = eachRow(q.AuditSubjects(ctx, db.AuditSubjectsParams{TenantID: tenant, Subjects: names}))(func(r db.AuditSubjectsRow) { add(r.Target, r.Target, r.Object) })
	case auditEndpoint:
		err = eachRow(q.AuditEndpoints(ctx, db.AuditEndpointsParams{TenantID: tenant, Ids: ids}))(func(r db.AuditEndpointsRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditPrice:
		err = eachRow(q.AuditPrices(ctx, db.AuditPricesParams{TenantID: tenant, Prices: names}))(func(r db.AuditPricesRow) { add(r.Target, r.Target, r.Object) })
	case auditMigration:
		err = eachRow(q.AuditMigrations(ctx, db.AuditMigrationsParams{TenantID: tenant, Ids: ids}))(func(r db.AuditMigrationsRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditPortal:
		err = eachRow(q.AuditPortals(ctx, ids))(func(r db.AuditPortalsRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditSecurity:
		err = eachRow(q.AuditSecurity(ctx, ids))(func(r db.AuditSecurityRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditLink:
		err = eachRow(q.AuditPortalLinks(ctx, db.AuditPortalLinksParams{TenantID: tenant, Ids: ids}))(func(r db.AuditPortalLinksRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditRequest:
		err = eachRow(q.AuditLimitRequests(ctx, db.AuditLimitRequestsParams{TenantID: tenant, Ids: ids}))(func(r db.AuditLimitRequestsRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditNotified:
		err = eachRow(q.AuditNotificationEndpoints(ctx, db.AuditNotificationEndpointsParams{TenantID: tenant, Ids: ids}))(func(r db.AuditNotificationEndpointsRow) {
			object, problem := withoutURL(r.Object, r.Target)
			failed = errors.Join(failed, problem)
			add(r.ID.String(), MaskedURL(r.Target), object)
		})
	case auditCredits:
		err = eachRow(q.AuditCredits(ctx, db.AuditCreditsParams{TenantID: tenant, Ids: ids}))(func(r db.AuditCreditsRow) { add(r.ID.String(), r.Target, r.Object) })
	case auditMember:
		err = eachRow(q.AuditMembers(ctx, db.AuditMembersParams{TenantID: tenant, Ids: ids}))(func(r db.AuditMembersRow) { add(r.ID.String(), r.Target, r.Object) })
	}
	return objects, errors.Join(err, failed)
}

func eachRow[R any](rows []R, err error) func(do func(R)) error {
	return func(do func(R)) error {
		for _, row := range rows {
			do(row)
		}
		return err
	}
}

// withoutURL masks the address in the object of a notification endpoint, because every member reads
// the trail. A few characters of its hash show that it was changed.
func withoutURL(object, address string) (string, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(object), &fields); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(address))
	fields["url"], fields["url_hash"] = quoted(MaskedURL(address)), quoted(hex.EncodeToString(sum[:4]))
	text, err := json.Marshal(fields)
	return string(text), err
}
