package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// EventKind is the kind of a security event.
type EventKind string

// The kinds of security events. The trail of changes has the details of a change of a key, a member
// or a setting; these events have all of them in one stream with the sign-ins.
const (
	EventSignIn          EventKind = "sign_in.succeeded"
	EventSignInFailed    EventKind = "sign_in.failed"
	EventSignInBlocked   EventKind = "sign_in.blocked" // too many failures
	EventNewDevice       EventKind = "device.new"      // a sign-in with a browser that is new to the login
	EventSessionEnded    EventKind = "session.ended"
	EventPasswordLink    EventKind = "password.link_sent"
	EventPasswordChanged EventKind = "password.changed"
	EventEmailLink       EventKind = "email.link_sent"
	EventEmailChanged    EventKind = "email.changed"
	EventConfirmed       EventKind = "password.confirmed" // entered again, before a change
	EventMemberAdded     EventKind = "member.added"
	EventMemberChanged   EventKind = "member.changed"
	EventMemberRemoved   EventKind = "member.removed"
	EventKeyCreated      EventKind = "key.created"
	EventKeyChanged      EventKind = "key.changed"
	EventKeyRotated      EventKind = "key.rotated"
	EventKeyRevoked      EventKind = "key.revoked"
	EventDeviceApproved  EventKind = "device.approved" // a sign-in of the command weir
	EventDeviceDenied    EventKind = "device.denied"
	EventSettings        EventKind = "settings.changed" // the security settings
	EventExported        EventKind = "data.exported"
)

// EventKinds lists the kinds.
var EventKinds = []EventKind{
	EventSignIn, EventSignInFailed, EventSignInBlocked, EventNewDevice, EventSessionEnded, EventPasswordLink, EventPasswordChanged, EventConfirmed,
	EventEmailLink, EventEmailChanged,
	EventMemberAdded, EventMemberChanged, EventMemberRemoved, EventKeyCreated, EventKeyChanged, EventKeyRotated, EventKeyRevoked,
	EventDeviceApproved, EventDeviceDenied, EventSettings, EventExported,
}

// SecurityEvent is one event of a tenant.
type SecurityEvent struct {
	ID        uuid.UUID // in the order of time
	At        time.Time
	Kind      EventKind
	ActorKind string // as in AuditEntry
	ActorID   *uuid.UUID
	ActorName string
	Address   string // "": no request
	UserAgent string
	RequestID string
	Target    string          // an email, the id of a key, or what was exported
	Details   json.RawMessage // a JSON object
}

// EventFilter selects the events that meet all of its conditions. "" matches all.
type EventFilter struct {
	Kind     EventKind
	Actor    string // the name or the id
	Address  string
	From, To *time.Time // From is inclusive, To is exclusive and later than From
}

func (f EventFilter) validate() error {
	for _, c := range []struct{ field, text string }{{"actor", f.Actor}, {"address", f.Address}} {
		if len(c.text) > 512 || !plain(c.text) {
			return invalid(c.field, plainUpTo(512))
		}
	}
	if f.Kind != "" && !slices.Contains(EventKinds, f.Kind) {
		return invalid("kind", limit.Wrong("Use a kind of the list, or omit it.", "is not a kind of security event"))
	}
	if f.From != nil && f.To != nil && !f.To.After(*f.From) {
		return invalid("to", afterFrom)
	}
	return nil
}

// newEvent is an event without its tenant.
type newEvent struct {
	kind    EventKind
	target  string
	details map[string]any // nil: none
}

// maxEventDetails is the maximum number of bytes of the details of an event, which must fit into a
// notification. The audit trail has longer changes.
const maxEventDetails = 16 << 10

func (e *newEvent) text() string {
	if e.details == nil {
		return "{}"
	}
	text, err := json.Marshal(e.details)
	if err != nil {
		panic("tenants: encode the details of an event: " + err.Error()) // texts only
	}
	if len(text) > maxEventDetails {
		return `{"truncated": true}`
	}
	return string(text)
}

// appendEvents writes events of a tenant. It runs as weir_app with the tenant set.
func appendEvents(ctx context.Context, q *db.Queries, a Actor, tenant uuid.UUID, now time.Time, events []newEvent) error {
	if len(events) == 0 {
		return nil
	}
	origin, _ := ctx.Value(originKey{}).(Origin)
	p := db.InsertSecurityEventsParams{
		TenantID: tenant, At: now, ActorKind: a.kind.String(), ActorName: a.name,
		Address: origin.Address, UserAgent: origin.UserAgent, RequestID: origin.RequestID,
	}
	if a.id != uuid.Nil {
		p.ActorID = &a.id
	}
	for i := range events {
		p.Ids, p.Kinds = append(p.Ids, newID()), append(p.Kinds, string(events[i].kind))
		p.Targets, p.Details = append(p.Targets, events[i].target), append(p.Details, events[i].text())
	}
	if err := q.InsertSecurityEvents(ctx, p); err != nil {
		return err
	}
	for i := range events {
		event := SecurityEvent{
			ID: p.Ids[i], At: now, Kind: events[i].kind, ActorKind: p.ActorKind, ActorID: p.ActorID, ActorName: p.ActorName, Address: p.Address,
			UserAgent: p.UserAgent, RequestID: p.RequestID, Target: p.Targets[i], Details: json.RawMessage(p.Details[i]),
		}
		if err := notify(ctx, q, tenant, now, Notification{Type: SecurityEventAdded, Data: event.Line()}); err != nil {
			return err
		}
	}
	return nil
}

// auditEvents are the kinds of events that rows of the audit trail also are, by object and action.
var auditEvents = map[string]map[string]EventKind{
	auditKey:      {"create": EventKeyCreated, "update": EventKeyChanged, "rotate": EventKeyRotated, "revoke": EventKeyRevoked},
	auditMember:   {"create": EventMemberAdded, "update": EventMemberChanged, "delete": EventMemberRemoved},
	auditSecurity: {"create": EventSettings, "update": EventSettings},
}

// eventsOf returns the events for rows of the audit trail.
func eventsOf(rows []auditRow) (events []newEvent) {
	for i := range rows {
		row := &rows[i]
		kind, is := auditEvents[row.kind][row.action]
		if !is {
			continue
		}
		e := newEvent{kind: kind, target: row.target, details: map[string]any{}}
		if row.before != nil {
			e.details["before"] = row.before
		}
		if row.after != nil {
			e.details["after"] = row.after
		}
		if row.reason != "" {
			e.details["reason"] = row.reason
		}
		events = append(events, e)
	}
	return events
}

// personEventSQL writes an event of a login to every tenant that the person has joined.
const personEventSQL = `
INSERT INTO security_events (tenant_id, id, at, kind, actor_kind, actor_id, actor_name, address, user_agent, request_id, target, details)
SELECT m.tenant_id, $2, $3, $4, 'member', m.id, p.email, $5, $6, $7, p.email, $8
FROM members m JOIN people p ON p.id = m.person_id
WHERE m.person_id = $1 AND m.joined_at IS NOT NULL
RETURNING tenant_id, actor_id, actor_name`

// personEvent writes an event of a login to all tenants of the person. It runs as weir_system.
func (s *Store) personEvent(ctx context.Context, tx pgx.Tx, person uuid.UUID, e newEvent) error {
	origin, _ := ctx.Value(originKey{}).(Origin)
	id, now, details := newID(), s.instant(), e.text()
	rows, err := tx.Query(ctx, personEventSQL, person, id, now, string(e.kind), origin.Address, origin.UserAgent, origin.RequestID, details)
	if err != nil {
		return err
	}
	type written struct {
		TenantID, ActorID uuid.UUID
		ActorName         string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[written])
	if err != nil {
		return err
	}
	for i := range all {
		event := SecurityEvent{
			ID: id, At: now, Kind: e.kind, ActorKind: MemberActor.String(), ActorID: &all[i].ActorID, ActorName: all[i].ActorName,
			Address: origin.Address, UserAgent: origin.UserAgent, RequestID: origin.RequestID, Target: all[i].ActorName, Details: json.RawMessage(details),
		}
		if err := notify(ctx, db.New(tx), all[i].TenantID, now, Notification{Type: SecurityEventAdded, Data: event.Line()}); err != nil {
			return err
		}
	}
	return nil
}

// RecordOfEmail records what a client did with the login of an email: a failed sign-in, for
// example. An unknown email has no tenant, so nothing is recorded. Errors: ErrUnavailable.
func (s *Store) RecordOfEmail(ctx context.Context, email string, kind EventKind) error {
	email, ok := normalEmail(email)
	if !ok {
		return nil
	}
	err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		row, err := q.PersonByEmail(ctx, email)
		if err != nil {
			return err
		}
		return s.personEvent(ctx, tx, row.ID, newEvent{kind: kind})
	})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// exportRepeats is how long further exports of the same data by the same actor from the same
// address are part of the first one's event. Exports do not change anything, so nothing else limits
// how often a key may repeat them.
const exportRepeats = time.Minute

// maxExportAddresses is how many addresses have such an event of their own. A client can have any
// number of addresses.
const maxExportAddresses = 5

const recentExportSQL = `SELECT count(*) >= $9 OR count(*) FILTER (WHERE address = $8) > 0 FROM security_events
WHERE tenant_id = $1 AND at > $2 AND kind = $3 AND target = $4 AND actor_kind = $5 AND actor_id IS NOT DISTINCT FROM $6 AND actor_name = $7`

// RecordExport records that the actor exported data, such as "audit". Errors: ErrUnavailable.
func (s *Store) RecordExport(ctx context.Context, a Actor, what, format string) error {
	return s.write(ctx, roleApp, a.tenant, s.operation, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, a.tenant.String()); err != nil {
			return err
		}
		origin, _ := ctx.Value(originKey{}).(Origin)
		var id *uuid.UUID
		if a.id != uuid.Nil {
			id = &a.id
		}
		var repeated bool
		err := tx.QueryRow(ctx, recentExportSQL, a.tenant, s.instant().Add(-exportRepeats), string(EventExported), what,
			a.kind.String(), id, a.name, origin.Address, maxExportAddresses).Scan(&repeated)
		if err != nil || repeated {
			return err
		}
		e := newEvent{kind: EventExported, target: what}
		if format != "" {
			e.details = map[string]any{"format": format}
		}
		return appendEvents(ctx, q, a, a.tenant, s.instant(), []newEvent{e})
	})
}

// securityEventsSQL selects a page of events. As for the audit trail, the statement contains only
// the given conditions.
func securityEventsSQL(tenant uuid.UUID, f EventFilter, before *uuid.UUID, most int32) (sql string, args []any) {
	args = []any{tenant}
	where := "tenant_id = $1"
	add := func(condition string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(args)), 1)
		}
		where += " AND " + condition
	}
	if before != nil {
		add("id < ?", *before)
	}
	if f.Kind != "" {
		add("kind = ?", string(f.Kind))
	}
	if id, err := uuid.Parse(f.Actor); f.Actor != "" && err == nil {
		add("(actor_name = ? OR actor_id = ?)", f.Actor, id)
	} else if f.Actor != "" {
		add("actor_name = ?", f.Actor)
	}
	if f.Address != "" {
		add("address = ?", f.Address)
	}
	if f.From != nil || f.To != nil {
		from, to := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
		if f.From != nil {
			from = pgtype.Timestamptz{Time: *f.From, Valid: true}
		}
		if f.To != nil {
			to = pgtype.Timestamptz{Time: *f.To, Valid: true}
		}
		add("at >= ? AND at < ?", from, to)
	}
	args = append(args, most)
	return `SELECT tenant_id, id, at, kind, actor_kind, actor_id, actor_name, address, user_agent, request_id, target, details
FROM security_events WHERE ` + where + " ORDER BY id DESC LIMIT $" + strconv.Itoa(len(args)), args
}

// SecurityEvents lists the events of the actor's tenant, newest first, and returns where the next
// page begins.
func (s *Store) SecurityEvents(ctx context.Context, a Actor, f EventFilter, p Page) (out []SecurityEvent, next string, err error) {
	before, err := p.after()
	if err != nil {
		return nil, "", err
	}
	if err := f.validate(); err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		sql, args := securityEventsSQL(a.tenant, f, before, p.most())
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByName[db.SecurityEvent])
		if err != nil {
			return err
		}
		found, next = cut(p, found, func(r db.SecurityEvent) uuid.UUID { return r.ID })
		out = make([]SecurityEvent, len(found))
		for i, r := range found {
			out[i] = SecurityEvent{
				ID: r.ID, At: r.At, Kind: EventKind(r.Kind), ActorKind: r.ActorKind, ActorID: r.ActorID, ActorName: r.ActorName,
				Address: r.Address, UserAgent: r.UserAgent, RequestID: r.RequestID, Target: r.Target, Details: r.Details,
			}
		}
		return nil
	})
	return out, next, err
}

const eventPurgeRows = 1000 // in one transaction

// oldEventsSQL reads events that are older than their tenant keeps them. Those of each tenant are
// found by its index: how old they are differs by tenant, so Postgres cannot know that they are
// few, and would otherwise read the events of all tenants. To delete them in the same statement, it
// would also read all, because it would expect as many as the statement may delete.
const oldEventsSQL = `
SELECT e.tenant_id, e.id
FROM tenants t LEFT JOIN security_settings s ON s.tenant_id = t.id
CROSS JOIN LATERAL (
    SELECT x.tenant_id, x.id FROM security_events x WHERE x.tenant_id = t.id
        AND x.at < $1::timestamptz - coalesce(s.event_retention_ms, $2::bigint) * interval '1 millisecond'
    ORDER BY x.at LIMIT $3
) AS e LIMIT $3`

const deleteEventsSQL = `
DELETE FROM security_events e USING unnest($1::uuid[], $2::uuid[]) AS old(tenant_id, id)
WHERE e.tenant_id = old.tenant_id AND e.id = old.id`

// PurgeSecurityEvents deletes the events that are older than their tenant keeps them. Several
// servers may call it concurrently. Error: ErrUnavailable.
func (s *Store) PurgeSecurityEvents(ctx context.Context) (removed int64, err error) {
	for more := true; more; {
		var n int64
		err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) (err error) {
			n, more, err = s.purgeEvents(ctx, tx)
			return err
		})
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}

// purgeEvents deletes up to eventPurgeRows events. more means that there may be others.
func (s *Store) purgeEvents(ctx context.Context, tx pgx.Tx) (removed int64, more bool, err error) {
	rows, _ := tx.Query(ctx, oldEventsSQL, s.instant(), defaultEventsKeptFor.Milliseconds(), eventPurgeRows)
	var tenants, ids []uuid.UUID
	var tenant, id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&tenant, &id}, func() error {
		tenants, ids = append(tenants, tenant), append(ids, id)
		return nil
	})
	if err != nil || len(ids) == 0 {
		return 0, false, err
	}
	done, err := tx.Exec(ctx, deleteEventsSQL, tenants, ids)
	return done.RowsAffected(), len(ids) == eventPurgeRows, err
}

// eventColumns are those of events as a table.
var eventColumns = []string{"id", "at", "kind", "actor_kind", "actor_id", "actor_name", "address", "user_agent", "request_id", "target", "details"}

// NewEventTable returns a function that writes events as CSV, with a header before the first.
func NewEventTable(w io.Writer) func(events []SecurityEvent) error {
	table, begun := newTable(w), false
	return func(events []SecurityEvent) error {
		if !begun {
			begun = true
			_ = table.Write(eventColumns) // table.Error returns the error
		}
		for i := range events {
			e := &events[i]
			actor := ""
			if e.ActorID != nil {
				actor = e.ActorID.String()
			}
			_ = table.Write([]string{
				e.ID.String(), e.At.Format(time.RFC3339Nano), string(e.Kind), e.ActorKind, actor, CSVCell(e.ActorName), CSVCell(e.Address),
				CSVCell(e.UserAgent), CSVCell(e.RequestID), CSVCell(e.Target), string(e.Details),
			})
		}
		table.Flush()
		return table.Error()
	}
}

// EventLine is an event as JSON, in the form of the admin API, of an export and of a webhook.
type EventLine struct {
	ID        uuid.UUID       `json:"id"`
	At        time.Time       `json:"at"`
	Kind      EventKind       `json:"kind"`
	Actor     auditLineActor  `json:"actor"`
	Address   string          `json:"address"`
	UserAgent string          `json:"user_agent"`
	RequestID string          `json:"request_id"`
	Target    string          `json:"target"`
	Details   json.RawMessage `json:"details"`
}

// Line returns the event as JSON.
func (e *SecurityEvent) Line() EventLine {
	return EventLine{
		ID: e.ID, At: e.At, Kind: e.Kind, Actor: auditLineActor{e.ActorKind, e.ActorID, e.ActorName}, Address: e.Address,
		UserAgent: e.UserAgent, RequestID: e.RequestID, Target: e.Target, Details: e.Details,
	}
}

// NewEventLines returns a function that writes events to w, as one JSON object per line.
func NewEventLines(w io.Writer) func(events []SecurityEvent) error {
	lines := json.NewEncoder(w)
	return func(events []SecurityEvent) error {
		for i := range events {
			if err := lines.Encode(events[i].Line()); err != nil {
				return err
			}
		}
		return nil
	}
}
