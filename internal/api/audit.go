package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/danielgtaylor/huma/v2/negotiation"

	"weir/internal/limit"
	"weir/internal/tenants"
)

const jsonLinesType = "application/jsonl"

// AuditParams select rows of the trail.
type AuditParams struct {
	PageParams
	Actor  string `query:"actor" doc:"Only rows with this actor, by name or id"`
	Action string `query:"action" enum:"create,update,delete,rotate,revoke,reset,import,test,replay,dismiss" doc:"Only this"`
	Kind   string `query:"kind" enum:"tenant,key,rule,route,plan,subject,member,endpoint,price,billing_event,migration,portal,portal_link,limit_request,credits,notification_endpoint,security" doc:"Only rows with this type of target"`
	Target string `query:"target" doc:"Only rows with this target: a slug, a subject, an email, or the id of a key"`
	From   string `query:"from" format:"date-time" doc:"Start of the period, RFC 3339"`
	To     string `query:"to" format:"date-time" doc:"End of the period, RFC 3339, exclusive"`
	Format string `query:"format" enum:"json,csv,jsonl" doc:"Overrides the header Accept; default json. csv and jsonl export all rows, as a table or as one JSON object per line, and cannot be combined with limit or cursor"`

	asked askedForm
}

// askedForm is what a request says about the form of the answer, in addition to the parameters.
type askedForm struct {
	limited bool   // it has the parameter limit
	accept  string // its header Accept
}

// Resolve is called by huma after it has read the parameters.
func (in *AuditParams) Resolve(ctx huma.Context) []error {
	in.asked = askedFormOf(ctx)
	return nil
}

func askedFormOf(ctx huma.Context) askedForm {
	return askedForm{limited: ctx.Query("limit") != "", accept: ctx.Header("Accept")}
}

// format returns json, csv or jsonl. parameter is the value of the parameter format, "" for none.
func (f *askedForm) format(parameter string) string {
	if parameter != "" {
		return parameter
	}
	switch negotiation.SelectQValueFast(f.accept, []string{jsonType, csvType, jsonLinesType}) {
	case csvType:
		return "csv"
	case jsonLinesType:
		return "jsonl"
	}
	return "json"
}

// pagesOnly refuses parameters that an export of all rows would ignore.
func (f *askedForm) pagesOnly(cursor string) error {
	var wrong []ProblemField
	for _, given := range []struct {
		name string
		is   bool
	}{{"cursor", cursor != ""}, {"limit", f.limited}} {
		if given.is {
			wrong = append(wrong, wrongField("query:"+given.name, limit.Wrong("Omit it, or use format=json.", "is only for format=json: other formats have all rows")))
		}
	}
	return invalidIfAny(wrong)
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
	Action    string      `json:"action" doc:"create, update, delete, rotate, revoke, reset, import, test, replay, dismiss"`
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
	op := a.operation(http.MethodGet, path, id, summary, nil)
	ok := jsonResponse[List[AuditEntry]](a.api, "OK")
	for _, other := range []string{csvType, jsonLinesType} {
		ok.Content[other] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	op.Responses["200"] = ok
	register(a, op, a.listAudit)
}

func (a *admin) listAudit(ctx context.Context, in *AuditParams) (*huma.StreamResponse, error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	fetch := func(p tenants.Page) ([]tenants.AuditEntry, string, error) {
		items, next, err := a.store.Audit(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	}
	if format := in.asked.format(in.Format); format != "json" {
		if err := in.asked.pagesOnly(in.Cursor); err != nil {
			return nil, err
		}
		return a.exportAudit(ctx, format, fetch)
	}
	name := fmt.Sprintf("audit %q", []string{in.Actor, in.Action, in.Kind, in.Target, in.From, in.To})
	list, err := listPage(ctx, a, name, in.PageParams, auditAnswer, fetch)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(list.Body)
	if err != nil {
		return nil, err
	}
	return varying(jsonAnswer(body)), nil
}

// varying adds to an answer that it depends on the header Accept.
func varying(answer *huma.StreamResponse) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		ctx.SetHeader("Vary", "Accept")
		answer.Body(ctx)
	}}
}

func (in *AuditParams) filter() (tenants.AuditFilter, error) {
	f := tenants.AuditFilter{Actor: in.Actor, Action: in.Action, Kind: in.Kind, Target: in.Target}
	for _, bound := range []struct {
		name, text string
		to         **time.Time
	}{{"from", in.From, &f.From}, {"to", in.To, &f.To}} {
		if bound.text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, bound.text)
		if err != nil {
			return f, invalid(wrongField("query:"+bound.name, notRFC3339))
		}
		*bound.to = &t
	}
	return f, nil
}

// auditExportRows is the number of rows of an export in memory.
const auditExportRows = 1000

// exportAudit streams all rows. It reads the first page before it sends anything, so that it can
// report errors of the request.
func (a *admin) exportAudit(ctx context.Context, format string, fetch func(tenants.Page) ([]tenants.AuditEntry, string, error)) (*huma.StreamResponse, error) {
	rows, next, err := fetch(tenants.Page{Limit: auditExportRows})
	if err != nil {
		return nil, err
	}
	if err := a.store.RecordExport(ctx, actorFrom(ctx), "audit trail", format); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		contentType := jsonLinesType
		if format == "csv" {
			contentType = csvType + "; charset=utf-8"
		}
		hctx.SetHeader("Content-Type", contentType)
		hctx.SetHeader("Content-Disposition", `attachment; filename="audit.`+format+`"`)
		hctx.SetHeader("Vary", "Accept")
		_, w := humachi.Unwrap(hctx)
		deadline := http.NewResponseController(w)
		out := newAuditWriter(format, w)
		for {
			_ = deadline.SetWriteDeadline(time.Now().Add(writeTimeout)) // if it cannot be set, there is no deadline
			if err := out(rows); err != nil {
				return // the client has disconnected
			}
			if next == "" {
				return
			}
			if rows, next, err = fetch(tenants.Page{Limit: auditExportRows, After: next}); err != nil {
				a.problem(hctx.Context(), err)
				panic(http.ErrAbortHandler) // the client must not take a part for the whole
			}
		}
	}}, nil
}

// newAuditWriter returns a function that writes rows as a table, or as one line of JSON each.
func newAuditWriter(format string, w io.Writer) func(rows []tenants.AuditEntry) error {
	if format == "csv" {
		return tenants.NewAuditTable(w).Write
	}
	return tenants.NewAuditLines(w)
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
