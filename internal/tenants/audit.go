package tenants

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// AuditEntry is one row of a tenant's trail: the effect of one change on one object.
type AuditEntry struct {
	Sequence  int64 // 1, 2, 3, ... in each tenant
	ID        uuid.UUID
	At        time.Time
	ActorKind string     // key, operator, system, member, provider, customer
	ActorID   *uuid.UUID // of the key; nil if there is none
	ActorName string
	Address   string // of the client that the request came from; "": no request
	UserAgent string // "": none was sent
	RequestID string // "": no request
	Action    string // create, update, delete, revoke, rotate, reset, import, test, replay, dismiss, compare
	Kind      string // tenant, key, rule, plan, subject, member, endpoint, price, billing_event, portal, portal_link, limit_request, notification_endpoint, security
	Target    string // slug, subject, email, or id of a key
	// Before and After are JSON objects with the fields that differ; null means not set. Before is
	// nil for a created object, After for a deleted one.
	Before, After json.RawMessage
	// BeforeBytes and AfterBytes are the sizes of Before and After if they are omitted, because
	// they have more bytes than Page.Fields permits. Otherwise they are 0.
	BeforeBytes, AfterBytes int
	Reason                  string // if one was given
	Hash                    [32]byte
}

// Omitted reports whether the entry has only the sizes of Before and After.
func (e *AuditEntry) Omitted() bool { return e.BeforeBytes+e.AfterBytes > 0 }

// Whole reports whether the change created or deleted an object, or has no fields.
func (e *AuditEntry) Whole() bool {
	return e.Before == nil && e.BeforeBytes == 0 || e.After == nil && e.AfterBytes == 0
}

// AuditFilter selects the rows of a trail that meet all of its conditions. Texts are compared
// exactly; "" matches all.
type AuditFilter struct {
	Actor    string // the name or the id
	Action   string
	Kind     string
	Target   string
	From, To *time.Time // From is inclusive, To is exclusive and later than From
}

// Origin is the origin of a request, for the trail.
type Origin struct {
	Address   string // of the client: of the connection, or as reported by a trusted proxy
	UserAgent string
	RequestID string
}

type originKey struct{}

// WithOrigin returns a context whose changes are recorded with this origin.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	const most = 512 // bytes of each; longer values are truncated
	for _, text := range []*string{&o.Address, &o.UserAgent, &o.RequestID} {
		*text = strings.ToValidUTF8(strings.ReplaceAll((*text)[:min(len(*text), most)], "\x00", ""), "")
	}
	return context.WithValue(ctx, originKey{}, o)
}

type reasonKey struct{}

// WithReason returns a context whose changes are recorded with that reason, up to 500 characters,
// unless they have their own reason.
func WithReason(ctx context.Context, reason string) context.Context {
	return context.WithValue(ctx, reasonKey{}, reason)
}

// String returns the word for the kind in a trail.
func (k ActorKind) String() string {
	switch k {
	case KeyActor:
		return "key"
	case OperatorActor:
		return "operator"
	case SystemActor:
		return "system"
	case MemberActor:
		return "member"
	case ProviderActor:
		return "provider"
	case CustomerActor:
		return "customer"
	}
	return "unknown"
}

// auditRow is a row without its place in the chain.
type auditRow struct {
	action, kind, target string
	before, after        json.RawMessage
	reason               string
}

// appendAudit appends rows to a tenant's chain. It runs in the transaction of the change, as
// weir_app with the tenant set. most is how many bytes the tenant's changes may add in a day.
// Error: *TooOftenError if these are more.
func appendAudit(ctx context.Context, q *db.Queries, tenant uuid.UUID, a Actor, now time.Time, most int64, rows []auditRow) error {
	if len(rows) == 0 {
		return nil
	}
	end, err := q.LockAuditHead(ctx, db.LockAuditHeadParams{TenantID: tenant, Genesis: genesis[:]})
	if err != nil {
		return err
	}
	day := auditDayOf(&end, most, now)
	if err := day.admit(a, rows); err != nil {
		return err
	}
	events := eventsOf(rows) // with all fields
	origin, _ := ctx.Value(originKey{}).(Origin)
	reason, _ := ctx.Value(reasonKey{}).(string)
	var actorID *uuid.UUID
	if a.id != uuid.Nil {
		actorID = &a.id
	}
	p := db.InsertAuditParams{
		TenantID: tenant, At: now, ActorKind: a.kind.String(), ActorID: actorID, ActorName: a.name,
		Address: origin.Address, UserAgent: origin.UserAgent, RequestID: origin.RequestID,
	}
	for _, row := range rows {
		if row.reason == "" {
			row.reason = reason
		}
		day.add(&row, len(a.name)+len(origin.Address)+len(origin.UserAgent)+len(origin.RequestID))
		end.Sequence++
		id := newID()
		hash := auditHash([32]byte(end.Hash), db.Audit{
			TenantID: tenant, Sequence: end.Sequence, ID: id, At: now, ActorKind: p.ActorKind, ActorID: actorID, ActorName: a.name,
			Address: p.Address, UserAgent: p.UserAgent, RequestID: p.RequestID,
			Action: row.action, Kind: row.kind, Target: row.target, Before: row.before, After: row.after, Reason: row.reason,
		})
		end.Hash = hash[:]
		p.Sequences, p.Ids, p.Hashes = append(p.Sequences, end.Sequence), append(p.Ids, id), append(p.Hashes, end.Hash)
		p.Actions, p.Kinds, p.Targets = append(p.Actions, row.action), append(p.Kinds, row.kind), append(p.Targets, row.target)
		p.Befores, p.Afters = append(p.Befores, string(row.before)), append(p.Afters, string(row.after))
		p.Reasons = append(p.Reasons, row.reason)
	}
	if err := q.InsertAudit(ctx, p); err != nil {
		return err
	}
	if err := appendEvents(ctx, q, a, tenant, now, events); err != nil {
		return err
	}
	return q.MoveAuditHead(ctx, db.MoveAuditHeadParams{TenantID: tenant, Sequence: end.Sequence, Hash: end.Hash, Day: end.Day, DayBytes: day.bytes})
}

// genesis is the hash before the first row.
var genesis [32]byte

// auditHash is SHA-256 over the hash of the previous row and all fields of this one. Each field is
// preceded by its length, so that different rows have different texts.
func auditHash(previous [32]byte, row db.Audit) [32]byte {
	h := sha256.New()
	part := func(b []byte) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(b)))
		h.Write(size[:])
		h.Write(b)
	}
	number := func(n int64) { part(strconv.AppendInt(nil, n, 10)) }
	part([]byte("weir audit 1")) // a version, so that the format can change
	part(previous[:])
	part(row.TenantID[:])
	number(row.Sequence)
	part(row.ID[:])
	number(row.At.UnixMicro())
	part([]byte(row.ActorKind))
	if row.ActorID != nil {
		part(row.ActorID[:])
	} else {
		part(nil)
	}
	for _, text := range []string{row.ActorName, row.Address, row.UserAgent, row.RequestID, row.Action, row.Kind, row.Target} {
		part([]byte(text))
	}
	part(row.Before)
	part(row.After)
	part([]byte(row.Reason))
	return [32]byte(h.Sum(nil))
}

// auditListSQL selects a page of a trail. The statement contains only the given conditions.
// Otherwise Postgres would plan a frequent statement for all parameters at once, and would use no
// index for optional conditions.
func auditListSQL(tenant uuid.UUID, f AuditFilter, before *int64, most int32) (sql string, args []any) {
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
		add("sequence < ?", *before)
	}
	if id, err := uuid.Parse(f.Actor); f.Actor != "" && err == nil {
		add("(actor_name = ? OR actor_id = ?)", f.Actor, id)
	} else if f.Actor != "" {
		add("actor_name = ?", f.Actor)
	}
	if f.Action != "" {
		add("action = ?", f.Action)
	}
	switch {
	case f.Kind != "":
		add("kind = ?", f.Kind)
	case f.Target != "": // the index has both columns
		add("kind = ANY(?)", auditKinds)
	}
	if f.Target != "" {
		add("target = ?", f.Target)
	}
	if f.From != nil || f.To != nil { // always both, because Postgres uses an index only for a range with two ends
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
	return `SELECT tenant_id, sequence, id, at, actor_kind, actor_id, actor_name, address, user_agent, request_id, action, kind, target,
    before, after, reason, hash
FROM audit WHERE ` + where + " ORDER BY sequence DESC LIMIT $" + strconv.Itoa(len(args)), args
}

// boundedAuditSQL is the statement for rows whose fields have no more bytes than Page.Fields. It
// compares the sizes of the rows of the page only, whatever plan selects them.
func boundedAuditSQL(sql string, args []any, fields int) (bounded string, with []any) {
	with = append(args, fields)
	most := "$" + strconv.Itoa(len(with)) + "::int"
	return `SELECT tenant_id, sequence, id, at, actor_kind, actor_id, actor_name, address, user_agent, request_id, action, kind, target,
    CASE WHEN fits THEN before END AS before, CASE WHEN fits THEN after END AS after, reason, hash,
    CASE WHEN fits THEN 0 ELSE was END AS before_bytes, CASE WHEN fits THEN 0 ELSE has END AS after_bytes
FROM (SELECT page.*, was, has, was + has <= CASE WHEN before IS NULL OR after IS NULL THEN ` + most + ` / 4 ELSE ` + most + ` END AS fits
    FROM (` + sql + `) page,
    LATERAL (SELECT coalesce(octet_length(before::text), 0) AS was, coalesce(octet_length(after::text), 0) AS has) size) sized
ORDER BY sequence DESC`, with
}

// Audit lists the trail of the actor's tenant, newest first, and returns where the next page
// begins.
func (s *Store) Audit(ctx context.Context, a Actor, f AuditFilter, p Page) (out []AuditEntry, next string, err error) {
	var before *int64
	if p.After != "" {
		n, err := strconv.ParseInt(p.After, 10, 64)
		if err != nil {
			return nil, "", invalid("cursor", notAnyCursor)
		}
		before = &n
	}
	if err := f.validate(); err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		out, next, err = f.page(ctx, tx, a.tenant, before, p)
		return err
	})
	return out, next, err
}

// auditPart is how many rows of a page that ends by its bytes are read first. Postgres also sends
// the rows behind the end, so each further part has at most twice as many as the one before had.
const auditPart = 20

// page reads a page, in parts if it ends by its bytes.
func (f *AuditFilter) page(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, before *int64, p Page) (out []AuditEntry, next string, err error) {
	part := p
	if p.Bytes > 0 {
		part.Limit = min(auditPart, int(p.most())-1)
	}
	for {
		some, after, err := f.part(ctx, tx, tenant, before, part)
		if err != nil {
			return nil, "", err
		}
		out = append(out, some...)
		for i := range some {
			part.Bytes -= some[i].bytes()
		}
		left := int(p.most()) - 1 - len(out)
		if after == "" || p.Bytes == 0 || part.Bytes <= 0 || left == 0 {
			return out, after, nil
		}
		before, part.Limit = &out[len(out)-1].Sequence, min(2*len(some), left)
	}
}

// part reads the rows of one statement.
func (f *AuditFilter) part(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, before *int64, p Page) (out []AuditEntry, next string, err error) {
	sql, args := auditListSQL(tenant, *f, before, p.most())
	if p.Fields > 0 {
		sql, args = boundedAuditSQL(sql, args, p.Fields)
	}
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, "", err
	}
	return auditPage(rows, p)
}

// bytes returns the size of the texts of a row.
func (e *AuditEntry) bytes() int {
	return len(e.Before) + len(e.After) + len(e.Target) + len(e.Reason) + len(e.UserAgent)
}

// listedAudit is a row of a page. The statement of a page without a bound has no sizes.
type listedAudit struct {
	db.Audit
	BeforeBytes, AfterBytes int
}

// auditPage reads the rows of a page.
func auditPage(rows pgx.Rows, p Page) (out []AuditEntry, next string, err error) {
	defer rows.Close()
	size, most := 0, int(p.most())-1
	for rows.Next() {
		if len(out) == most || p.Bytes > 0 && size >= p.Bytes { // one more row exists
			return out, strconv.FormatInt(out[len(out)-1].Sequence, 10), nil
		}
		row, err := pgx.RowToStructByNameLax[listedAudit](rows)
		if err != nil {
			return nil, "", err
		}
		entry := auditEntryOf(row.Audit)
		entry.BeforeBytes, entry.AfterBytes = row.BeforeBytes, row.AfterBytes
		out = append(out, entry)
		size += entry.bytes()
	}
	return out, "", rows.Err()
}

func (f AuditFilter) validate() error {
	for _, c := range []struct{ field, text string }{{"actor", f.Actor}, {"action", f.Action}, {"kind", f.Kind}, {"target", f.Target}} {
		if len(c.text) > 512 || !plain(c.text) {
			return invalid(c.field, plainUpTo(512))
		}
	}
	if f.From != nil && f.To != nil && !f.To.After(*f.From) {
		return invalid("to", afterFrom)
	}
	return nil
}

func auditEntryOf(row db.Audit) AuditEntry {
	return AuditEntry{
		Sequence: row.Sequence, ID: row.ID, At: row.At, ActorKind: row.ActorKind, ActorID: row.ActorID, ActorName: row.ActorName,
		Address: row.Address, UserAgent: row.UserAgent, RequestID: row.RequestID, Action: row.Action, Kind: row.Kind,
		Target: row.Target, Before: row.Before, After: row.After, Reason: row.Reason, Hash: [32]byte(row.Hash),
	}
}

// AuditMark is the end of a trail at some time. It is stored to detect later that rows are missing.
// Its text is SEQUENCE:HASH.
type AuditMark struct {
	Sequence int64
	Hash     [32]byte
}

// String returns the mark's text.
func (m AuditMark) String() string {
	return strconv.FormatInt(m.Sequence, 10) + ":" + hex.EncodeToString(m.Hash[:])
}

// ParseAuditMark parses a mark's text.
func ParseAuditMark(text string) (AuditMark, error) {
	number, hash, _ := strings.Cut(text, ":")
	sequence, err1 := strconv.ParseInt(number, 10, 64)
	raw, err2 := hex.DecodeString(hash)
	if err1 != nil || err2 != nil || len(raw) != len(genesis) || sequence < 0 || sequence == 0 && [32]byte(raw) != genesis {
		return AuditMark{}, limit.Wrong("Send the mark of an earlier answer unchanged.", "must be the number of a row, a colon and 64 hexadecimal digits")
	}
	return AuditMark{Sequence: sequence, Hash: [32]byte(raw)}, nil
}

// Reset is a request to reset counters of a subject.
type Reset struct {
	Subject    string
	Resource   string            // "": the rules that count by no resource
	Attributes map[string]string // by which rules count
	Reason     string
}

// RecordReset calls reset, which resets counters, and records the actor and the reason in the
// trail, also if the client disconnects meanwhile. reset returns the slugs of the rules whose
// counters were reset. It is not called if the trail cannot be written. If it fails, its error is
// returned unchanged. A row is then written only if it returned rules, whose counters may have been
// reset, and says so.
func (s *Store) RecordReset(ctx context.Context, a Actor, r Reset, reset func(ctx context.Context) (rules []string, err error)) error {
	if !a.May(MayReset) {
		return ErrForbidden
	}
	ctx = context.WithoutCancel(ctx)
	var refused error // to distinguish it from errors of the database
	var unsure []string
	err := s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		now := s.instant()
		head, err := q.LockAuditHead(ctx, db.LockAuditHeadParams{TenantID: a.tenant, Genesis: genesis[:]})
		if err != nil {
			return err
		}
		a, err := a.mayStill(ctx, q, MayReset, now)
		if err != nil {
			return err
		}
		row := auditRow{action: "reset", kind: auditSubject, target: r.Subject, reason: r.Reason}
		day := auditDayOf(&head, s.auditDay, now)
		if err := day.admit(a, []auditRow{row}); err != nil { // before the reset, which cannot be undone
			return err
		}
		rules, err := reset(ctx)
		if err != nil {
			refused, unsure = err, rules
			return err
		}
		if row.after, err = r.after(rules, false); err != nil {
			return err
		}
		return appendAudit(ctx, q, a.tenant, a, now, s.auditDay, []auditRow{row})
	})
	if refused == nil {
		return err
	}
	if len(unsure) > 0 {
		if err := s.recordUnsureReset(ctx, a, r, unsure); err != nil {
			return errors.Join(refused, err)
		}
	}
	return refused
}

// recordUnsureReset writes the row of a reset that may have happened, in a transaction of its own:
// that of an idempotent request is not committed, because the answer is an error.
func (s *Store) recordUnsureReset(ctx context.Context, a Actor, r Reset, rules []string) error {
	if p, ok := ctx.Value(postKey{}).(*post); ok {
		p.rollback() // which ends its lock on the trail
		ctx = context.WithValue(ctx, postKey{}, nil)
	}
	after, err := r.after(rules, true)
	if err != nil {
		return err
	}
	return s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		row := auditRow{action: "reset", kind: auditSubject, target: r.Subject, reason: r.Reason, after: after}
		return appendAudit(ctx, q, a.tenant, a, s.instant(), s.auditDay, []auditRow{row})
	})
}

func (r *Reset) after(rules []string, unsure bool) ([]byte, error) {
	return json.Marshal(struct {
		Rules      []string          `json:"rules"`
		Resource   string            `json:"resource,omitempty"`
		Attributes map[string]string `json:"attributes,omitempty"`
		Unsure     bool              `json:"unsure,omitempty"`
	}{rules, r.Resource, r.Attributes, unsure})
}
