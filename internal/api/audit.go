package api

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// AuditParams select rows of the trail.
type AuditParams struct {
	PageParams
	Actor  string `query:"actor" doc:"Only rows with this actor, by name or id"`
	Action string `query:"action" enum:"create,update,delete,rotate,revoke,reset,import,test,replay,dismiss,compare" doc:"Only this"`
	Kind   string `query:"kind" enum:"tenant,key,rule,route,plan,subject,member,endpoint,price,billing_event,migration,portal,portal_link,limit_request,credits,notification_endpoint,security" doc:"Only rows with this type of target"`
	Target string `query:"target" doc:"Only rows with this target: a slug, a subject, an email, or the id of a key"`
	From   string `query:"from" format:"date-time" doc:"Start of the period, RFC 3339"`
	To     string `query:"to" format:"date-time" doc:"End of the period, RFC 3339, exclusive"`
	Format string `query:"format" enum:"json,csv,jsonl" doc:"Overrides the header Accept; default json. csv and jsonl export all rows, as a table or as one JSON object per line, and cannot be combined with limit or cursor"`

	asked askedForm
}

// Resolve is called by huma after it has read the parameters.
func (in *AuditParams) Resolve(ctx huma.Context) []error {
	in.asked = askedFormOf(ctx)
	return nil
}

// AuditEntry is one row of the trail.
type AuditEntry struct {
	Sequence  int64       `json:"sequence" doc:"1, 2, 3 and so on, without gaps"`
	ID        string      `json:"id" format:"uuid"`
	At        time.Time   `json:"at"`
	Actor     AuditActor  `json:"actor"`
	Address   string      `json:"address" doc:"Client address, reported by a trusted proxy if there is one; empty: no request"`
	UserAgent string      `json:"user_agent" doc:"Of the request"`
	RequestID string      `json:"request_id" doc:"Id of the request, as in X-Request-Id; all rows of one change have the same"`
	Action    string      `json:"action" doc:"create, update, delete, rotate, revoke, reset, import, test, replay, dismiss, compare"`
	Kind      string      `json:"kind" doc:"tenant, key, rule, route, plan (with its limits), subject (with its overrides), member, endpoint and price (of a billing system), billing_event (the target is its id at the provider), migration (of a plan; the target is the plan), portal (settings of the customer page), portal_link, limit_request and credits (the target is the subject), notification_endpoint (the target is its address), security (settings of sessions and security events)"`
	Target    string      `json:"target" doc:"A slug, a subject, an email, or the id of a key"`
	Before    AuditFields `json:"before" doc:"The changed fields before the change, null for a field that was not set; null for a created object"`
	After     AuditFields `json:"after" doc:"The changed fields after the change; null for a deleted object"`
	Reason    string      `json:"reason" doc:"The reason that the request gave"`
	Hash      string      `json:"hash" doc:"SHA-256 over the hash of the previous row and all fields of this one"`
}

// AuditActor is the actor of a change.
type AuditActor struct {
	Kind string  `json:"kind" doc:"key, operator (of the service), system (the service itself)"`
	ID   *string `json:"id" format:"uuid" doc:"Of the key"`
	Name string  `json:"name" doc:"Of the key at that time"`
}

// AuditVerifyParams select what to verify.
type AuditVerifyParams struct {
	Head  string `query:"head" doc:"The head of an earlier answer, or from the server's log. It must still be in the trail"`
	From  string `query:"from" doc:"The verified_to of an earlier answer: continue after that row, which must still be in the trail"`
	Limit int64  `query:"limit" minimum:"1" maximum:"100000" default:"100000" doc:"Maximum number of rows to read"`
}

// auditVerifyTime is the time after which one request stops reading.
const auditVerifyTime = 2 * time.Second

// AuditVerifyAnswer is the answer of GET /v1/audit/verify.
type AuditVerifyAnswer struct {
	Valid      *bool   `json:"valid" doc:"Whether the trail is intact; null if no error was found and complete is false"`
	Complete   bool    `json:"complete" doc:"Whether the verification reached the end. If not, repeat it with verified_to as from"`
	Rows       int64   `json:"rows" doc:"Number of verified rows"`
	From       string  `json:"from" doc:"The row before the first verified row, SEQUENCE:HASH; 0 and zeros if there is none"`
	VerifiedTo string  `json:"verified_to" doc:"The last verified row, SEQUENCE:HASH; send it as from to continue"`
	Removed    int64   `json:"removed" doc:"Number of rows deleted because of their age; the hash of the last one is kept"`
	Head       *string `json:"head" doc:"The last row of the trail, SEQUENCE:HASH; null if the end was not reached. Store it elsewhere, and send it as head later"`
	BrokenAt   *int64  `json:"broken_at" doc:"The first invalid or missing row"`
	Problem    *string `json:"problem" doc:"What is wrong with it"`
}

func auditAnswer(e tenants.AuditEntry) AuditEntry {
	out := AuditEntry{
		Sequence: e.Sequence, ID: e.ID.String(), At: e.At, Actor: AuditActor{Kind: e.ActorKind, Name: e.ActorName},
		Address: e.Address, UserAgent: e.UserAgent, RequestID: e.RequestID, Action: e.Action, Kind: e.Kind, Target: e.Target,
		Before: AuditFields(e.Before), After: AuditFields(e.After), Reason: e.Reason, Hash: hex.EncodeToString(e.Hash[:]),
	}
	if e.ActorID != nil {
		out.Actor.ID = ptr(e.ActorID.String())
	}
	return out
}

// AuditFields are the fields of an object as JSON, null where there is no object.
type AuditFields []byte

// MarshalJSON returns the fields as they are.
func (f AuditFields) MarshalJSON() ([]byte, error) {
	if f == nil {
		return []byte("null"), nil
	}
	return f, nil
}

// Schema describes the fields to huma: an object of any form.
func (AuditFields) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true, Nullable: true}
}

// trail registers the list of audit rows, which can also be a table or lines of JSON.
func (a *admin) trail(path, id, summary string) {
	op := a.operation(http.MethodGet, path, id, summary, []option{inTurns, usesProcessor})
	op.Responses["200"] = exportableResponse[AuditEntry](a)
	register(a, op, a.listAudit)
}

// auditPageBytes ends a page of the trail. A row of a subject with 1000 overrides can have 4 MB.
const auditPageBytes = 4 << 20

func (a *admin) listAudit(ctx context.Context, in *AuditParams) (*huma.StreamResponse, error) {
	from, to, err := periodOf(in.From, in.To)
	if err != nil {
		return nil, err
	}
	filter := tenants.AuditFilter{Actor: in.Actor, Action: in.Action, Kind: in.Kind, Target: in.Target, From: from, To: to}
	fetch := func(p tenants.Page) ([]tenants.AuditEntry, string, error) {
		p.Bytes = cmp.Or(p.Bytes, auditPageBytes)
		items, next, err := a.store.Audit(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	}
	return listOrExport(ctx, a, &in.asked, in.Format, in.PageParams, exportableList[tenants.AuditEntry, AuditEntry]{
		what: "audit trail", file: "audit", fetch: fetch, answer: auditAnswer,
		name:  fmt.Sprintf("audit %q", []string{in.Actor, in.Action, in.Kind, in.Target, in.From, in.To}),
		table: func(w io.Writer) rowWriter[tenants.AuditEntry] { return tenants.NewAuditTable(w).Write },
		lines: tenants.NewAuditLines,
	})
}

func (a *admin) verifyAudit(ctx context.Context, in *AuditVerifyParams) (*huma.StreamResponse, error) {
	v := tenants.AuditVerification{Rows: in.Limit, Within: auditVerifyTime}
	var wrong []ProblemField
	for _, given := range []struct {
		name, text string
		to         **tenants.AuditMark
	}{{"from", in.From, &v.After}, {"head", in.Head, &v.Remembered}} {
		if given.text == "" {
			continue
		}
		mark, err := tenants.ParseAuditMark(given.text)
		if err != nil {
			wrong = append(wrong, wrongField("query:"+given.name, limit.ProblemOf(err)))
		}
		*given.to = &mark
	}
	if len(wrong) > 0 {
		return nil, invalid(wrong...)
	}
	report, err := a.store.VerifyAudit(ctx, actorFrom(ctx), v)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(auditVerifyAnswer(report))
	if err != nil {
		return nil, err
	}
	return jsonAnswer(body), nil
}

func auditVerifyAnswer(r tenants.AuditReport) AuditVerifyAnswer {
	out := AuditVerifyAnswer{Complete: r.Complete, Rows: r.Rows, From: r.From.String(), VerifiedTo: r.Head.String(), Removed: r.Removed.Sequence}
	switch {
	case !r.Valid:
		out.Valid, out.BrokenAt, out.Problem = ptr(false), &r.BrokenAt, &r.Problem
	case r.Complete:
		out.Valid, out.Head = ptr(true), ptr(r.Head.String())
	}
	return out
}
