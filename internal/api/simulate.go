package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/places"
)

// SimulateInput is the body of POST /v1/simulate.
type SimulateInput struct {
	Rules    []RuleCreate      `json:"rules" minItems:"1" maxItems:"32" doc:"The rules to simulate, as for POST /v1/rules; they are not stored"`
	Plans    []SimulatePlan    `json:"plans,omitempty" maxItems:"32" doc:"Plans for the simulation; default none"`
	Subjects []SimulateSubject `json:"subjects,omitempty" maxItems:"1000" doc:"Registered subjects with their plans, states and overrides; all others are unregistered"`
	Requests []SimulateRequest `json:"requests,omitempty" minItems:"1" maxItems:"10000" doc:"In the order of decision; either requests or traffic is required"`
	Traffic  *SimulateTraffic  `json:"traffic,omitempty" doc:"A pattern of requests, instead of a list"`
	StartMS  int64             `json:"start_ms,omitempty" minimum:"0" maximum:"99999999999999" doc:"The instant of at_ms 0, milliseconds since 1970; default 0. Only fixed_window depends on it, because its windows follow the clock"`
}

// SimulateAsk has the fields of a check in a simulation.
type SimulateAsk struct {
	Resource   string            `json:"resource,omitempty" minLength:"1" maxLength:"256" doc:"Default default"`
	Cost       *int64            `json:"cost,omitempty" minimum:"0" maximum:"1000000000000000" doc:"Units to take; default 1, 0 consumes nothing"`
	Plan       string            `json:"plan,omitempty" minLength:"1" doc:"Slug of one of the plans; default: the subject's plan, else the default plan"`
	Attributes map[string]string `json:"attributes,omitempty" maxProperties:"16" doc:"Further values that rules can count by"`
}

// SimulateRequest is a check at an instant of the virtual clock.
type SimulateRequest struct {
	AtMS    int64  `json:"at_ms" minimum:"0" maximum:"99999999999999" doc:"Milliseconds after start_ms; may be lower than that of the previous request"`
	Subject string `json:"subject" minLength:"1" maxLength:"256"`
	SimulateAsk
}

// SimulateTraffic describes requests. docs/simulate.md lists the numbers of each pattern.
type SimulateTraffic struct {
	Pattern    string   `json:"pattern" enum:"steady,burst,ramp,poisson,window_edge"`
	Subjects   []string `json:"subjects,omitempty" minItems:"1" maxItems:"1000" doc:"Each one sends the full pattern; default user_1"`
	Requests   int64    `json:"requests,omitempty" doc:"steady and poisson: in each per_ms; burst and window_edge: at once"`
	PerMS      int64    `json:"per_ms,omitempty" doc:"steady, ramp, poisson: unit of time of the rate, in milliseconds"`
	DurationMS int64    `json:"duration_ms,omitempty" doc:"steady, ramp, poisson: duration of the traffic"`
	From       int64    `json:"from,omitempty" doc:"ramp: requests per per_ms at the start"`
	To         int64    `json:"to,omitempty" doc:"ramp: requests per per_ms at the end"`
	AtMS       []int64  `json:"at_ms,omitempty" maxItems:"10000" doc:"burst: the instants"`
	WindowMS   int64    `json:"window_ms,omitempty" doc:"window_edge: length of the window"`
	Edges      int64    `json:"edges,omitempty" minimum:"1" doc:"window_edge: number of consecutive edges; default 1"`
	Seed       int64    `json:"seed,omitempty" minimum:"0" doc:"poisson: the same seed gives the same requests"`
	SimulateAsk
}

// SimulateAnswer is the answer of POST /v1/simulate. The type is only for the OpenAPI document; the
// answer is encoded by hand, like that of a check.
type SimulateAnswer struct {
	Decisions []SimulatedDecision `json:"decisions" doc:"In the order of the requests; for traffic, by time"`
	Summary   SimulateSummary     `json:"summary"`
}

// SimulatedDecision is the answer to one simulated request.
type SimulatedDecision struct {
	AtMS int64 `json:"at_ms" doc:"Milliseconds after start_ms"`
	CheckAnswer
}

// SimulateSummary counts the decisions.
type SimulateSummary struct {
	Requests int64                 `json:"requests"`
	Allowed  int64                 `json:"allowed"`
	Denied   int64                 `json:"denied"`
	Rules    []SimulateRuleSummary `json:"rules" doc:"By slug; the results of each rule, whether or not it decided"`
}

// SimulateRuleSummary counts the results of one rule.
type SimulateRuleSummary struct {
	Rule    string `json:"rule"`
	Allowed int64  `json:"allowed"`
	Denied  int64  `json:"denied" doc:"For a shadow rule: what it would have denied"`
}

// simulator runs simulations: few at the same time, and each for a short time, because they use CPU
// time that checks need.
type simulator struct {
	slots   *places.Turns[limit.TenantID]  // those of all long work
	wait    time.Duration                  // for a slot
	asking  *places.Places[limit.TenantID] // that wait for a slot or have one
	answers *places.Places[limit.TenantID] // that are computed or sent
	budget  time.Duration                  // of one simulation, in CPU time, so that it does not depend on other load
	timeout time.Duration                  // of one simulation, in wall time: the maximum wait of a client
}

const (
	// simulationWait is how long one waits for a slot, in turn, so that two tenants with one
	// simulation after the other do not keep out a third one.
	simulationWait = 2 * time.Second
	// maxSimulationsAsking is how many wait or run. Those of a tenant must not fill its share of
	// requests.
	maxSimulationsAsking = 64
	// The answers of clients that do not read them take memory until they are given up.
	maxSimulationAnswers       = 16
	maxTenantSimulationAnswers = 2
	simulationBudget           = 200 * time.Millisecond
	simulationTimeout          = 5 * time.Second
	// maxSimulationBytes limits the answer: 10 000 decisions of one rule take 5 MB, of 32 rules 60
	// MB.
	maxSimulationBytes = 16 << 20
	budgetEvery        = 8 // decisions between two checks of the CPU time
	maxShownErrors     = 20
	oneSubject         = "user_1"
)

func newSimulator(processors *places.Processors) *simulator {
	return &simulator{
		slots: processors.Long, wait: simulationWait,
		answers: places.New[limit.TenantID](maxSimulationAnswers, maxTenantSimulationAnswers),
		asking:  places.New[limit.TenantID](maxSimulationsAsking, maxTenantSimulationAnswers),
		budget:  simulationBudget, timeout: simulationTimeout,
	}
}

var (
	errAnswerTooLarge = errors.New("the answer is too large")
	errOverBudget     = errors.New("the simulation has used its processor time")
)

// simulate answers POST /v1/simulate. The memory of an answer is limited until it is sent, and the
// processor only until it is computed.
func (s *simulator) simulate(ctx context.Context, in *struct{ Body SimulateInput }) (*huma.StreamResponse, error) {
	tenant := actorFrom(ctx).TenantID()
	// Without a slot, there is no answer, and so those that wait use no place of answers.
	ask, ok := s.asking.Take(tenant)
	if !ok {
		return nil, busySimulator()
	}
	defer ask()
	leave, err := s.slots.TakeWithin(ctx, tenant, s.wait)
	if err != nil {
		return nil, busySimulator()
	}
	defer leave()
	forget, ok := s.answers.Take(tenant)
	if !ok {
		return nil, busySimulator()
	}
	computed := false
	defer func() {
		if !computed { // also after a panic
			forget()
		}
	}()
	answer, err := s.compute(ctx, in)
	if err != nil {
		return nil, err
	}
	computed = true
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer forget()
		jsonAnswer(answer).Body(ctx)
	}}, nil
}

func busySimulator() *Problem {
	return newProblem(http.StatusTooManyRequests, codeSimulationBusy,
		"This instance runs its maximum number of simulations, or those of this tenant.").withRetryAfter(1)
}

// compute returns the encoded answer.
func (s *simulator) compute(ctx context.Context, in *struct{ Body SimulateInput }) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	// The CPU time of the thread is that of this simulation, because nothing else runs on the
	// thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	end := threadTime() + s.budget
	simulation, errs := in.Body.simulation()
	if len(errs) > 0 {
		return nil, invalid(errs[:min(len(errs), maxShownErrors)]...)
	}
	answer, err := simulationAnswer(ctx, simulation, end)
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(err, errAnswerTooLarge):
		return nil, simulationTooLarge("Its answer would be longer than " + itoa(maxSimulationBytes>>20) + " MiB. Ask for fewer requests or rules at once.")
	case errors.Is(err, errOverBudget), ctx.Err() != nil:
		return nil, simulationTooLarge("It takes more than " + itoa(s.budget.Milliseconds()) + " ms of the processor. Ask for fewer requests or rules at once.")
	}
	return nil, err
}

func simulationTooLarge(detail string) *Problem {
	return newProblem(http.StatusUnprocessableEntity, codeSimulationTooLarge, detail)
}

// simulationAnswer decides the requests and encodes each decision, until the CPU time of the thread
// reaches end.
func simulationAnswer(ctx context.Context, s check.Simulation, end time.Duration) ([]byte, error) {
	b := append([]byte(nil), `{"decisions":[`...)
	summary := newSummary(s.Policy.Rules)
	err := check.Simulate(ctx, s, func(i int, d *check.Decision) error {
		if i%budgetEvery == 0 && threadTime() >= end {
			return errOverBudget
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"at_ms":`...)
		b = strconv.AppendInt(b, s.Requests[i].AtMS, 10)
		start := len(b)
		b = appendDecision(b, d)
		b[start] = ',' // the members of the decision follow at_ms
		summary.add(d)
		if len(b) > maxSimulationBytes {
			return errAnswerTooLarge
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	b = append(b, `],"summary":`...)
	b = summary.append(b)
	return append(b, "}\n"...), nil
}

// newSummary returns an empty summary with a row for every rule.
func newSummary(rules []limit.Rule) *SimulateSummary {
	s := &SimulateSummary{Rules: make([]SimulateRuleSummary, len(rules))}
	for i := range rules {
		s.Rules[i].Rule = rules[i].Slug
	}
	slices.SortFunc(s.Rules, func(a, b SimulateRuleSummary) int { return strings.Compare(a.Rule, b.Rule) })
	return s
}

func (s *SimulateSummary) add(d *check.Decision) {
	s.Requests++
	if d.Allowed {
		s.Allowed++
	} else {
		s.Denied++
	}
	row := 0
	for i := range d.Rules { // both lists are sorted by slug
		for s.Rules[row].Rule != d.Rules[i].Rule.Slug {
			row++
		}
		if d.Rules[i].Allowed {
			s.Rules[row].Allowed++
		} else {
			s.Rules[row].Denied++
		}
	}
}

func (s *SimulateSummary) append(b []byte) []byte {
	b = fmt.Appendf(b, `{"requests":%d,"allowed":%d,"denied":%d,"rules":[`, s.Requests, s.Allowed, s.Denied)
	for i, r := range s.Rules {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"rule":"%s","allowed":%d,"denied":%d}`, r.Rule, r.Allowed, r.Denied)
	}
	return append(b, "]}"...)
}

// simulation converts the body, or returns its errors.
func (in *SimulateInput) simulation() (check.Simulation, []ProblemField) {
	s := check.Simulation{StartMS: in.StartMS}
	var errs []ProblemField
	seen := map[string]bool{}
	for i := range in.Rules {
		at := "/rules/" + strconv.Itoa(i)
		rule, wrong := simulatedRule(&in.Rules[i])
		errs = append(errs, below(at, wrong)...)
		if seen[rule.Slug] {
			errs = append(errs, wrongField(at+"/slug", limit.Duplicate))
		}
		seen[rule.Slug] = true
		s.Policy.Rules = append(s.Policy.Rules, rule)
	}
	errs = append(errs, in.numbers(&s)...)
	var wrong []ProblemField
	switch {
	case (in.Requests == nil) == (in.Traffic == nil):
		wrong = []ProblemField{wrongField("/requests", limit.Wrong("Send one of the two.", "is required unless traffic is given, and cannot be combined with it"))}
	case in.Traffic != nil:
		s.Requests, wrong = in.Traffic.expand(in.StartMS)
	default:
		s.Requests, wrong = simulatedRequests(in.Requests)
	}
	for i := range s.Requests {
		if in.StartMS+s.Requests[i].AtMS > limit.MaxInstantMS {
			wrong = append(wrong, wrongField("/start_ms", limit.Wrong("Use an earlier start.", "and at_ms together must be at most %d", limit.MaxInstantMS)))
			break
		}
	}
	return s, append(errs, wrong...)
}

func below(pointer string, errs []ProblemField) []ProblemField {
	for i := range errs {
		errs[i].Pointer = pointer + errs[i].Pointer
	}
	return errs
}

// simulatedRule returns the rule of a body, with the validation of the store.
func simulatedRule(in *RuleCreate) (limit.Rule, []ProblemField) {
	r, errs := in.newRule(in.slug())
	return r, allRuleErrors(&r, errs)
}

func simulatedRequests(in []SimulateRequest) ([]check.SimulatedRequest, []ProblemField) {
	out := make([]check.SimulatedRequest, len(in))
	var errs []ProblemField
	for i := range in {
		req, wrong := in[i].request()
		if problem := limit.ValidName(in[i].Subject); problem != nil {
			wrong = append(wrong, wrongField("/subject", problem))
		}
		if len(wrong) > 0 {
			errs = append(errs, below("/requests/"+strconv.Itoa(i), wrong)...)
		}
		req.Subject = in[i].Subject
		out[i] = check.SimulatedRequest{AtMS: in[i].AtMS, Request: req}
	}
	return out, errs
}

// request returns the check to simulate, without its subject.
func (in *SimulateAsk) request() (check.Request, []ProblemField) {
	req := check.Request{Resource: "default", Cost: 1, Plan: in.Plan}
	var errs []ProblemField
	if in.Resource != "" {
		req.Resource = in.Resource
		if problem := limit.ValidName(in.Resource); problem != nil {
			errs = append(errs, wrongField("/resource", problem))
		}
	}
	if in.Cost != nil {
		req.Cost = *in.Cost
	}
	var wrong []ProblemField
	req.Attributes, wrong = attributesOf(in.Attributes)
	return req, append(errs, wrong...)
}

func (in *SimulateTraffic) expand(startMS int64) ([]check.SimulatedRequest, []ProblemField) {
	t := check.Traffic{
		Subjects: in.Subjects, Requests: in.Requests, PerMS: in.PerMS, DurationMS: in.DurationMS,
		From: in.From, To: in.To, AtMS: in.AtMS, WindowMS: in.WindowMS, Edges: in.Edges, Seed: uint64(in.Seed),
	}
	t.Pattern, _ = check.ParsePattern(in.Pattern) // the schema lists the names
	if t.Subjects == nil {
		t.Subjects = []string{oneSubject}
	}
	if t.Pattern == check.WindowEdge && t.Edges == 0 {
		t.Edges = 1
	}
	var errs []ProblemField
	t.Request, errs = in.request()
	requests, wrong := t.Expand(startMS)
	return requests, below("/traffic", append(errs, problemFields(wrong)...))
}
