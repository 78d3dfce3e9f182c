package weir

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Checker answers checks. A [*Client] is a Checker, and so is the fake in the package weirtest.
type Checker interface {
	Check(ctx context.Context, check Check) (Decision, error)
	CheckBatch(ctx context.Context, checks []Check) ([]Decision, error)
	Peek(ctx context.Context, check Check) (Decision, error)
	Explain(ctx context.Context, check Check) (Decision, error)
	Wait(ctx context.Context, check Check) (Decision, error)
}

// A Client sends checks to one server with one key. It is safe for concurrent use.
type Client struct {
	settings
	checkURL, batchURL, leasesURL *url.URL
	authorization                 []string
	closeIdle                     func()

	brk     *breaker // nil if it is off
	memory  *memory  // nil if it is off
	local   *local   // nil unless it is the fallback
	batcher *batcher // nil if it is off
	leased  *leases  // nil if they are off
	returns *returns
}

// New returns a client of the server at url, such as https://weir.example.com. The key needs the
// scope check. The error is a [*MisuseError].
func New(url, key string, options ...Option) (*Client, error) {
	s := defaults()
	for _, option := range options {
		option(&s)
	}
	u, err := parseURL(url)
	if err == nil {
		err = validateKey(key)
	}
	if err == nil {
		err = s.validate()
	}
	if err != nil {
		return nil, err
	}
	c := &Client{settings: s, checkURL: withPath(u, "/v1/check"), batchURL: withPath(u, "/v1/check/batch"),
		leasesURL:     withPath(u, "/v1/leases"),
		authorization: []string{"Bearer " + key}, closeIdle: func() {}}
	if c.transport == nil {
		transport := newTransport(&c.settings)
		c.transport, c.closeIdle = transport, transport.CloseIdleConnections
	}
	if s.breaker {
		c.brk = &breaker{state: BreakerClosed, changed: c.breakerChanged}
	}
	if s.denialMemory {
		c.memory = newMemory()
	}
	if s.onFailure == Local {
		c.local = newLocal(s.localShare)
	}
	if s.batching {
		c.batcher = &batcher{client: c}
	}
	c.returns = newReturns(c)
	if s.leases {
		c.leased = newLeases(c)
	}
	return c, nil
}

// Close returns leased units, beginning none after a second, and closes idle connections. Calls in
// flight are not affected, and the client stays usable, without leases.
func (c *Client) Close() {
	c.leased.close()
	c.returns.close()
	c.closeIdle()
}

// BreakerState returns the state of the circuit breaker.
func (c *Client) BreakerState() BreakerState { return c.brk.current() }

// Check asks whether the subject may proceed, and counts the check if it is allowed.
func (c *Client) Check(ctx context.Context, check Check) (d Decision, _ error) {
	if c.leased != nil && len(c.hooks) == 0 && c.leased.take(&check, c.clock.Now(), &d) {
		return d, nil
	}
	q, err := ask(check, false)
	if err != nil {
		return Decision{}, c.refused(ctx, "check", []Check{check}, err)
	}
	return c.single(ctx, "check", q)
}

// Peek returns the current state and takes nothing. Its cost is 0, and it is always allowed unless
// the subject is blocked.
func (c *Client) Peek(ctx context.Context, check Check) (Decision, error) {
	q, err := ask(check, true)
	if err != nil {
		return Decision{}, c.refused(ctx, "peek", []Check{check}, err)
	}
	return c.single(ctx, "peek", q)
}

// Explain returns the answer that Check would return, consumes nothing, and lists in Skipped the
// rules that were not evaluated, with the reason. It always asks the server.
func (c *Client) Explain(ctx context.Context, check Check) (Decision, error) {
	q, err := ask(check, false)
	if err != nil {
		return Decision{}, c.refused(ctx, "explain", []Check{check}, err)
	}
	q.dryRun, q.explain = true, true
	return c.single(ctx, "explain", q)
}

// CheckBatch sends up to 100 checks in one request. They are decided in order, and each has its own
// outcome. If one check is invalid, the whole batch is refused before anything is counted.
func (c *Client) CheckBatch(ctx context.Context, checks []Check) ([]Decision, error) {
	questions, misuse := askBatch(checks)
	if misuse != nil {
		return nil, c.refused(ctx, "batch", checks, misuse)
	}
	ctx, end := c.begin(ctx, "batch", checks)
	decisions, err := c.batch(ctx, questions)
	end(decisions, err)
	return decisions, err
}

func askBatch(checks []Check) ([]question, *MisuseError) {
	if len(checks) == 0 || len(checks) > maxBatch {
		return nil, invalid("/checks", "has "+strconv.Itoa(len(checks))+" entries", "Pass 1 to 100 checks.")
	}
	questions := make([]question, len(checks))
	for i, check := range checks {
		q, err := ask(check, false)
		if err == nil && check.IdempotencyKey != "" {
			err = invalid("/idempotency_key", "is set", "Omit it: checks of a batch cannot have a key.")
		}
		if err != nil {
			at := "/checks/" + strconv.Itoa(i)
			moved := *err
			if moved.Field == "header:Idempotency-Key" {
				moved.Field = "/idempotency_key"
			}
			moved.Field = at + moved.Field
			moved.Detail = at[1:] + ": " + moved.Detail
			moved.Errors = []FieldError{{Pointer: moved.Field, Message: err.Errors[0].Message, Fix: err.Fix}}
			return nil, &moved
		}
		questions[i] = q
	}
	return questions, nil
}

// single answers one question: from memory, by the server, or by the fallback.
func (c *Client) single(ctx context.Context, name string, q question) (Decision, error) {
	if len(c.hooks) == 0 {
		return c.answer(ctx, &q)
	}
	ctx, end := c.begin(ctx, name, []Check{q.Check})
	d, err := c.answer(ctx, &q)
	end([]Decision{d}, err)
	return d, err
}

func (c *Client) answer(ctx context.Context, q *question) (Decision, error) {
	if !q.explain && q.IdempotencyKey == "" {
		if d, found := c.fromMemory(q); found {
			return d, nil
		}
		if c.batcher != nil {
			return c.batcher.ask(ctx, q)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTimeout)
	defer cancel()
	return c.ask(ctx, q)
}

// fromMemory answers a question from leased units or by a denial that still holds.
func (c *Client) fromMemory(q *question) (d Decision, found bool) {
	now := c.clock.Now()
	if len(c.hooks) > 0 && q.Cost > 0 && c.leased.take(&q.Check, now, &d) { // without hooks, Check has tried
		return d, true
	}
	if d, found = c.memory.recall(q, now); found {
		c.leased.remembered(q)
	}
	return d, found
}

// ask sends one question. The context's deadline is the call's.
func (c *Client) ask(ctx context.Context, q *question) (Decision, error) {
	sentAt := c.clock.Now()
	leave, ok := c.brk.enter(sentAt)
	if !ok {
		return c.fallback(q, &NoDecision{Cause: CauseBreakerOpen}), nil
	}
	ended := false
	defer c.unlessEnded(leave, &ended)
	d, err := c.sendCheck(ctx, q)
	ended = true
	failure, err := c.settle(leave, err)
	if err != nil {
		return Decision{}, err
	}
	if failure != nil {
		return c.fallback(q, failure), nil
	}
	c.learn(q, &d, sentAt)
	return d, nil
}

// batch sends a batch of CheckBatch.
func (c *Client) batch(ctx context.Context, questions []question) ([]Decision, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTimeout)
	defer cancel()
	decisions, failure, err := c.askTogether(ctx, questions, false)
	if err != nil {
		return nil, err
	}
	if failure != nil {
		decisions = make([]Decision, len(questions))
		for i := range questions {
			decisions[i] = c.fallback(&questions[i], failure)
		}
		return decisions, nil
	}
	for i := range decisions {
		c.local.learn(&questions[i], &decisions[i])
	}
	return decisions, nil
}

// askTogether sends one batch.
func (c *Client) askTogether(ctx context.Context, questions []question, automatic bool) ([]Decision, *NoDecision, error) {
	leave, ok := c.brk.enter(c.clock.Now())
	if !ok {
		return nil, &NoDecision{Cause: CauseBreakerOpen}, nil
	}
	ended := false
	defer c.unlessEnded(leave, &ended)
	decisions, err := c.sendBatch(ctx, questions, automatic)
	ended = true
	failure, err := c.settle(leave, err)
	return decisions, failure, err
}

// unlessEnded returns the ticket of a call that has panicked, in a hook or in a transport of the
// application. The breaker would otherwise wait for the end of a probe forever, and the fallback
// would answer all calls.
func (c *Client) unlessEnded(leave ticket, ended *bool) {
	if !*ended {
		c.brk.cancel(leave, c.clock.Now())
	}
}

// settle reports the result of a call to the breaker. It converts the error to no decision, which
// is a value, or to misuse or cancellation, which are errors.
func (c *Client) settle(leave ticket, err error) (*NoDecision, error) {
	var misuse *MisuseError
	var failure *NoDecision
	switch {
	case err == nil || errors.As(err, &misuse):
		c.brk.leave(leave, nil, c.clock.Now())
		return nil, err
	case errors.As(err, &failure):
		if failure.callersDeadline {
			c.brk.cancel(leave, c.clock.Now())
		} else {
			c.brk.leave(leave, failure, c.clock.Now())
		}
		return failure, nil
	}
	c.brk.cancel(leave, c.clock.Now())
	return nil, err
}

// learn stores what a decision of the server implies for later questions.
func (c *Client) learn(q *question, d *Decision, sentAt time.Time) {
	c.local.learn(q, d)
	c.leased.sent(q, d)
	if !q.explain {
		c.memory.remember(q, d, sentAt)
	}
}

// fallback answers a question that the server has not decided.
func (c *Client) fallback(q *question, failure *NoDecision) Decision {
	d := Decision{Allowed: true, Source: SourceFallback, Subject: q.Subject, Resource: q.Resource, Cost: q.Cost, Degraded: true, NoDecision: failure}
	switch c.onFailure {
	case Deny:
		d.Allowed = false
		d.Denial = &Denial{Code: CodeLimiterUnavailable, Message: "The rate limiter is unavailable."}
	case Local:
		c.local.decide(q, &d, c.clock.Now())
	}
	return d
}

// refused ends a call that is not sent.
func (c *Client) refused(ctx context.Context, name string, checks []Check, err *MisuseError) error {
	_, end := c.begin(ctx, name, checks)
	end(nil, err)
	return err
}

// begin calls the hooks at the beginning of a call. The returned function must be called with the
// result.
func (c *Client) begin(ctx context.Context, name string, checks []Check) (context.Context, func([]Decision, error)) {
	if len(c.hooks) == 0 {
		return ctx, func([]Decision, error) {}
	}
	var ends []func(Result)
	for i := range c.hooks {
		if c.hooks[i].Begin == nil {
			continue
		}
		var end func(Result)
		if ctx, end = c.hooks[i].Begin(ctx, Call{Name: name, Checks: checks}); end != nil {
			ends = append(ends, end)
		}
	}
	began := time.Now()
	return ctx, func(decisions []Decision, err error) {
		r := Result{Decisions: decisions, Err: err, Duration: time.Since(began)}
		if err != nil {
			r.Decisions = nil
		}
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i](r)
		}
	}
}

func (c *Client) breakerChanged(from, to BreakerState) {
	if from == BreakerClosed && to == BreakerOpen {
		logger := c.logger
		if logger == nil {
			logger = slog.Default()
		}
		logger.Warn("weir: the circuit breaker is open; calls are answered by the fallback",
			"url", c.checkURL.Scheme+"://"+c.checkURL.Host, "on_failure", string(c.onFailure))
	}
	for i := range c.hooks {
		if c.hooks[i].BreakerChanged != nil {
			c.hooks[i].BreakerChanged(from, to)
		}
	}
}

// inject adds the headers of traces to a request.
func (c *Client) inject(ctx context.Context, h http.Header) {
	if traceparent, _ := ctx.Value(traceparentKey{}).(string); traceparent != "" {
		h["Traceparent"] = []string{traceparent}
	}
	for i := range c.hooks {
		if c.hooks[i].Inject != nil {
			c.hooks[i].Inject(ctx, h)
		}
	}
}
