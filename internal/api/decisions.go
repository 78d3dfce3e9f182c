package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
)

const (
	streamType      = "text/event-stream"
	streamHeartbeat = 15 * time.Second // shorter than the idle timeout of proxies
	streamWrite     = 10 * time.Second // for one write: a client that does not read is disconnected
	streamRetry     = 5                // seconds until a further stream may be opened
)

// DecisionFilterParams select recent decisions.
type DecisionFilterParams struct {
	Subject  string `query:"subject" maxLength:"256" doc:"Only this subject"`
	Prefix   string `query:"prefix" maxLength:"256" doc:"Only subjects that begin with this text"`
	Resource string `query:"resource" maxLength:"256" doc:"Only this resource"`
	Rule     string `query:"rule" maxLength:"63" doc:"Only decisions of the rule with this slug"`
	Denied   bool   `query:"denied" doc:"Only denied checks"`
}

// DecisionsParams select a list of recent decisions.
type DecisionsParams struct {
	DecisionFilterParams
	Since string `query:"since" format:"date-time" doc:"Only decisions from then on, RFC 3339"`
	Limit int    `query:"limit" minimum:"1" maximum:"300" default:"100" doc:"Maximum number of decisions, the newest ones"`
}

// DecisionStreamParams select a stream of decisions.
type DecisionStreamParams struct {
	DecisionFilterParams
	For string `query:"for" default:"1h" doc:"When the stream ends, after 1s to 1h"`
}

// DecisionsAnswer lists recent decisions.
type DecisionsAnswer struct {
	Items     []RecentDecision `json:"items" nullable:"false" doc:"Newest first"`
	Instances int              `json:"instances" doc:"Number of live instances"`
	Answered  int              `json:"answered" doc:"Number of instances whose decisions are listed"`
}

// RecentDecision is a recorded decision.
type RecentDecision struct {
	At           time.Time `json:"at" doc:"When the check began"`
	Subject      string    `json:"subject"`
	Resource     string    `json:"resource"`
	Plan         *string   `json:"plan" doc:"Slug; null without plans"`
	Cost         int64     `json:"cost"`
	Allowed      bool      `json:"allowed"`
	Code         *string   `json:"code" doc:"Why it was denied, as in error.code of the answer; null if it was allowed"`
	Rule         *string   `json:"rule" doc:"Slug of the deciding rule; null if none decided"`
	Source       *string   `json:"source" doc:"Where its limit came from: rule, plan:SLUG or override"`
	Limit        *int64    `json:"limit" doc:"The limit or, of a bucket, the burst"`
	WindowMS     *int64    `json:"window_ms"`
	Remaining    *int64    `json:"remaining" doc:"After the check"`
	RetryAfterMS *int64    `json:"retry_after_ms" doc:"Of a denied check, from at; null if no wait helps"`
	ResetAfterMS *int64    `json:"reset_after_ms" doc:"From at, until the full quota is available"`
	Degraded     bool      `json:"degraded" doc:"A rule was answered by its on_unavailable policy"`
	Repeats      int64     `json:"repeats" doc:"Number of equal denials by the same instance that are not listed: within the next second or, of older items about a subject that is denied all the time, within the same minute"`
}

func recentAnswer(d *recent.Decision) RecentDecision {
	out := RecentDecision{
		At: d.At.UTC(), Subject: d.Subject, Resource: d.Resource, Plan: optionalText(d.Plan), Cost: d.Cost, Allowed: d.Allowed,
		Code: optionalText(string(d.Code)), Degraded: d.Degraded, Repeats: d.Repeats,
	}
	if d.Rule == "" {
		return out
	}
	out.Rule, out.Source, out.Limit, out.WindowMS = &d.Rule, &d.Source, &d.Quota, &d.WindowMS
	if !d.Uncounted {
		out.Remaining, out.ResetAfterMS = &d.Remaining, &d.ResetAfterMS
	}
	if !d.Allowed && d.RetryAfterMS != limit.NeverMS {
		out.RetryAfterMS = &d.RetryAfterMS
	}
	return out
}

func (a *admin) decisionRoutes() {
	show(a, "/v1/decisions", "list-decisions", "List recent decisions", a.listDecisions, about(
		"decisions", "Decisions that the instances have in memory: of each the last 200 denied checks and 100 samples of allowed ones. Equal denials within a second are one item. Checks that clients decided from leases are not listed."))
	op := a.operation(http.MethodGet, "/v1/decisions/stream", "stream-decisions", "Stream decisions as they are made", []option{about(
		"decisions", "Server-sent events. An event `decision` has an item of `GET /v1/decisions` as its data, about two seconds after the check. An event `end` has a problem document, if the key no longer permits the stream. "+
			"Each instance serves at most 4 streams of a tenant.")})
	op.Responses["200"] = &huma.Response{
		Description: "Events until the stream ends",
		Headers: map[string]*huma.Param{"X-Accel-Buffering": {
			Description: "no: proxies must not buffer the stream", Schema: &huma.Schema{Type: huma.TypeString},
		}},
		Content: map[string]*huma.MediaType{streamType: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
	register(a, op, a.streamDecisions)
}

func (in *DecisionFilterParams) query() recent.Query {
	return recent.Query{Subject: in.Subject, Prefix: in.Prefix, Resource: in.Resource, Rule: in.Rule, Denied: in.Denied}
}

func (a *admin) listDecisions(ctx context.Context, in *DecisionsParams) (*answerOf[DecisionsAnswer], error) {
	q := in.query()
	q.Most = in.Limit
	if in.Since != "" {
		since, err := time.Parse(time.RFC3339, in.Since)
		if err != nil {
			return nil, invalid(wrongField("query:since", notRFC3339))
		}
		q.Since = since
	}
	tenant := actorFrom(ctx).TenantID()
	others := a.recent.Others(ctx, tenant)
	if err := turnUntilAnswer(ctx); err != nil {
		return nil, err
	}
	list := a.recent.Merge(tenant, others, q)
	answer := DecisionsAnswer{Items: make([]RecentDecision, len(list.Decisions)), Instances: list.Instances, Answered: list.Answered}
	for i := range list.Decisions {
		answer.Items[i] = recentAnswer(&list.Decisions[i])
	}
	return &answerOf[DecisionsAnswer]{Body: answer}, nil
}

func (a *admin) streamDecisions(ctx context.Context, in *DecisionStreamParams) (*huma.StreamResponse, error) {
	life, wrong := limit.ParseDuration(in.For)
	if wrong != nil || life.MS < time.Second.Milliseconds() || life.MS > time.Hour.Milliseconds() {
		return nil, invalid(wrongField("query:for", limit.MustBe("a duration from 1s to 1h")))
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humachi.Unwrap(hctx)
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Type", streamType)
			return
		}
		follower, err := a.recent.Follow(ctx, actorFrom(ctx).TenantID())
		if err != nil {
			writeProblem(w, r, newProblem(http.StatusTooManyRequests, codeTooManyStreams,
				"This instance serves its maximum number of streams of the tenant, or of all tenants.").withRetryAfter(streamRetry))
			return
		}
		defer follower.Close()
		requestFrom(ctx).leave() // it uses no place while nothing happens
		ctx, cancel := context.WithTimeout(ctx, time.Duration(life.MS)*time.Millisecond)
		defer cancel()
		s := &decisionStream{admin: a, w: w, r: r, deadlines: deadlinesOf(ctx), query: in.query()}
		s.run(ctx, follower)
	}}, nil
}

// decisionStream sends decisions to one client. It keeps its first error.
type decisionStream struct {
	admin     *admin
	w         http.ResponseWriter
	r         *http.Request
	deadlines deadlines
	query     recent.Query
	err       error
}

func (s *decisionStream) run(ctx context.Context, follower *recent.Follower) {
	s.w.Header().Set("Content-Type", streamType)
	s.w.Header().Set("X-Accel-Buffering", "no") // for proxies that would buffer it
	s.write(": open\n\n")
	wrote := time.Now()
	for s.err == nil {
		decisions, err := follower.Next(ctx)
		if errors.Is(err, recent.ErrFollowers) {
			s.write(": ended for a stream of another tenant\n\n")
		}
		if err != nil || stopped(s.admin.stopping) {
			return
		}
		if p := s.refused(ctx); p != nil {
			s.event("end", p)
			return
		}
		for i := range decisions {
			if s.query.Selects(&decisions[i]) {
				s.event("decision", recentAnswer(&decisions[i]))
				wrote = time.Now()
			}
		}
		if time.Since(wrote) >= streamHeartbeat {
			s.write(": still here\n\n")
			wrote = time.Now()
		}
	}
}

// refused returns why the key no longer permits the stream. While keys cannot be looked up, the
// stream continues.
func (s *decisionStream) refused(ctx context.Context) *Problem {
	key, p := bearer(s.r.Header["Authorization"])
	if p != nil {
		return p
	}
	actor, err := s.admin.authenticator.Authenticate(ctx, key)
	switch {
	case err == nil && actor.BoundToAddresses() && !actor.MayConnect(addressOf(s.r)):
		return wrongAddress()
	case err == nil:
		return lackingScope(actor, tenants.ScopeRead)
	case errors.Is(err, tenants.ErrKeyLookupUnavailable), ctx.Err() != nil:
		return nil
	}
	return problemOf(err)
}

func (s *decisionStream) event(name string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: texts, numbers and times
	}
	s.write("event: " + name + "\ndata: " + string(body) + "\n\n")
}

func (s *decisionStream) write(text string) {
	if s.err != nil {
		return
	}
	s.deadlines.write(streamWrite)
	if _, s.err = s.w.Write([]byte(text)); s.err == nil {
		s.err = s.deadlines.connection.Flush()
	}
}

func stopped(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
