package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/tenants"
)

// The security events of a tenant, and its settings for sessions and these events.

// SecuritySettings are the settings, as the API shows them.
type SecuritySettings struct {
	SessionIdle    string     `json:"session_idle" doc:"A session of the dashboard ends this long after its last use"`
	SessionLife    string     `json:"session_life" doc:"And this long after the sign-in"`
	MaxSessions    int64      `json:"max_sessions" doc:"Of each member; a further sign-in ends the least recently used one"`
	ConfirmAfter   string     `json:"confirm_after" doc:"How long after the last entry of the password a member may change keys, members, billing and these settings in the dashboard without entering it again"`
	EventRetention string     `json:"event_retention" doc:"How long security events are kept"`
	UpdatedAt      *time.Time `json:"updated_at" doc:"null: never changed"`
	Version        int64      `json:"version"`
}

// SecuritySettingsPatch is the merge patch of PATCH /v1/security-settings.
type SecuritySettingsPatch struct {
	SessionIdle    Optional[string] `json:"session_idle,omitempty" doc:"Duration from 5m to 12h; null: 12h"`
	SessionLife    Optional[string] `json:"session_life,omitempty" doc:"Duration from 1h to 7d; null: 7d"`
	MaxSessions    Optional[int64]  `json:"max_sessions,omitempty" minimum:"1" maximum:"100" doc:"null: 100"`
	ConfirmAfter   Optional[string] `json:"confirm_after,omitempty" doc:"Duration from 1m to 12h; null: 15m"`
	EventRetention Optional[string] `json:"event_retention,omitempty" doc:"Duration from 30d to 3650d; null: 365d"`
}

// SecurityEvent is one event, as the API shows it.
type SecurityEvent struct {
	ID        string      `json:"id" format:"uuid"`
	At        time.Time   `json:"at"`
	Kind      string      `json:"kind" doc:"Such as sign_in.failed; docs/security.md lists them"`
	Actor     AuditActor  `json:"actor"`
	Address   string      `json:"address" doc:"Of the client; empty if there was no request"`
	UserAgent string      `json:"user_agent"`
	RequestID string      `json:"request_id"`
	Target    string      `json:"target" doc:"An email, the id of a key, or what was exported"`
	Details   AuditFields `json:"details"`
}

// SecurityEventParams select events.
type SecurityEventParams struct {
	PageParams
	Kind    string `query:"kind" enum:"sign_in.succeeded,sign_in.failed,sign_in.blocked,device.new,session.ended,password.link_sent,password.changed,password.confirmed,email.link_sent,email.changed,member.added,member.changed,member.removed,key.created,key.changed,key.rotated,key.revoked,device.approved,device.denied,settings.changed,data.exported" doc:"Only events of this kind"`
	Actor   string `query:"actor" doc:"Only events with this actor, by name or id"`
	Address string `query:"address" doc:"Only events from this address"`
	From    string `query:"from" format:"date-time" doc:"Start of the period, RFC 3339"`
	To      string `query:"to" format:"date-time" doc:"End of the period, RFC 3339, exclusive"`
	Format  string `query:"format" enum:"json,csv,jsonl" doc:"Overrides the header Accept; default json. csv and jsonl export all events, as a table or as one JSON object per line, and cannot be combined with limit or cursor"`

	asked askedForm
}

// Resolve is called by huma after it has read the parameters.
func (in *SecurityEventParams) Resolve(ctx huma.Context) []error {
	in.asked = askedFormOf(ctx)
	return nil
}

// securityRoutes adds the operations on security events and settings.
func (a *admin) securityRoutes() {
	op := a.operation(http.MethodGet, "/v1/security-events", "list-security-events", "List the security events", []option{about(
		"security", "Sign-ins, new browsers, and changes of passwords, members and API keys; newest first."), inTurns, usesProcessor})
	op.Responses["200"] = exportableResponse[SecurityEvent](a)
	register(a, op, a.listSecurityEvents)
	tag := about("security", "")
	read(a, "/v1/security-settings", "get-security-settings", "Get the settings of sessions and security events", a.getSecuritySettings, tag)
	patch(a, "/v1/security-settings", "patch-security-settings", "Change the settings of sessions and security events", a.patchSecuritySettings, tag)
}

func securitySettingsAnswer(s tenants.SecuritySettings) SecuritySettings {
	out := SecuritySettings{
		SessionIdle: s.SessionIdle.Text, SessionLife: s.SessionLife.Text, MaxSessions: int64(s.MaxSessions),
		ConfirmAfter: s.ConfirmAfter.Text, EventRetention: s.EventRetention.Text, Version: s.Version,
	}
	if s.Version > 0 {
		out.UpdatedAt = &s.UpdatedAt
	}
	return out
}

func (a *admin) getSecuritySettings(ctx context.Context, _ *struct{}) (*object[SecuritySettings], error) {
	s, err := a.store.SecuritySettings(ctx, actorFrom(ctx))
	if err != nil {
		return nil, err
	}
	return found(securitySettingsAnswer(s), s.Version), nil
}

func (a *admin) patchSecuritySettings(ctx context.Context, in *struct{ Body SecuritySettingsPatch }) (*object[SecuritySettings], error) {
	b, def := &in.Body, tenants.DefaultSecuritySettings()
	s, err := a.store.EditSecuritySettings(ctx, actorFrom(ctx), conditionsFrom(ctx).match, func(s *tenants.SecuritySettings) error {
		s.SessionIdle.Text = b.SessionIdle.patch(s.SessionIdle.Text, def.SessionIdle.Text)
		s.SessionLife.Text = b.SessionLife.patch(s.SessionLife.Text, def.SessionLife.Text)
		s.MaxSessions = int(b.MaxSessions.patch(int64(s.MaxSessions), int64(def.MaxSessions)))
		s.ConfirmAfter.Text = b.ConfirmAfter.patch(s.ConfirmAfter.Text, def.ConfirmAfter.Text)
		s.EventRetention.Text = b.EventRetention.patch(s.EventRetention.Text, def.EventRetention.Text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found(securitySettingsAnswer(s), s.Version), nil
}

func securityEventAnswer(e tenants.SecurityEvent) SecurityEvent {
	out := SecurityEvent{
		ID: e.ID.String(), At: e.At, Kind: string(e.Kind), Actor: AuditActor{Kind: e.ActorKind, Name: e.ActorName}, Address: e.Address,
		UserAgent: e.UserAgent, RequestID: e.RequestID, Target: e.Target, Details: AuditFields(e.Details),
	}
	if e.ActorID != nil {
		out.Actor.ID = ptr(e.ActorID.String())
	}
	return out
}

func (a *admin) listSecurityEvents(ctx context.Context, in *SecurityEventParams) (*huma.StreamResponse, error) {
	from, to, err := periodOf(in.From, in.To)
	if err != nil {
		return nil, err
	}
	filter := tenants.EventFilter{Kind: tenants.EventKind(in.Kind), Actor: in.Actor, Address: in.Address, From: from, To: to}
	fetch := func(p tenants.Page) ([]tenants.SecurityEvent, string, error) {
		items, next, err := a.store.SecurityEvents(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	}
	return listOrExport(ctx, a, &in.asked, in.Format, in.PageParams, exportableList[tenants.SecurityEvent, SecurityEvent]{
		what: "security events", file: "security-events", fetch: fetch, answer: securityEventAnswer,
		name:  fmt.Sprintf("security events %q", []string{in.Kind, in.Actor, in.Address, in.From, in.To}),
		table: tenants.NewEventTable, lines: tenants.NewEventLines,
	})
}
