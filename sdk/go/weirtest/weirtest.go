// Package weirtest has a fake of the Weir client for tests of code that uses Weir. It needs no
// server.
package weirtest

import (
	"context"
	"strconv"
	"sync"
	"time"

	weir "github.com/weir-dev/weir-go"
)

// A Fake gives scripted answers and records the checks. It is safe for concurrent use.
type Fake struct {
	mu     sync.Mutex
	answer func(weir.Check) Answer
	script []Answer
	asked  []weir.Check
}

// An Answer is what a fake returns for one check: a decision, or an error.
type Answer struct {
	Decision weir.Decision
	Err      error
}

// AllowAll returns a fake that allows every check.
func AllowAll() *Fake { return Func(func(weir.Check) Answer { return Allowed() }) }

// DenyAll returns a fake that denies every check, with a retry after one minute.
func DenyAll() *Fake { return Func(func(weir.Check) Answer { return Denied(time.Minute) }) }

// Func returns a fake that answers with a function.
func Func(answer func(weir.Check) Answer) *Fake { return &Fake{answer: answer} }

// Script returns a fake that gives these answers in order. It panics if there are more checks.
func Script(answers ...Answer) *Fake { return &Fake{script: answers} }

// Allowed is the answer that allows a check, of a rule "test" with 99 of 100 units left.
func Allowed() Answer {
	return Answer{Decision: weir.Decision{Allowed: true, Source: weir.SourceServer, Rule: "test",
		Limit: weir.N(100), Remaining: weir.N(99), RetryAfterMS: weir.N(0), ResetAfterMS: weir.N(60_000),
		Headers: weir.Headers{Limit: "100", Remaining: "99"}}}
}

// Delayed is the answer that allows a check with a delay.
func Delayed(delay time.Duration) Answer {
	a := Allowed()
	a.Decision.DelayMS = weir.N(delay.Milliseconds())
	return a
}

// Denied is the answer that denies a check, with the time to wait.
func Denied(retryAfter time.Duration) Answer {
	seconds := int64((retryAfter + time.Second - 1) / time.Second)
	return Answer{Decision: weir.Decision{Source: weir.SourceServer, Rule: "test",
		Limit: weir.N(100), Remaining: weir.N(0), RetryAfterMS: weir.N(retryAfter.Milliseconds()), ResetAfterMS: weir.N(retryAfter.Milliseconds()),
		Denial:  &weir.Denial{Code: weir.CodeRateLimitExceeded, Message: "Rate limit exceeded.", RetryAfter: weir.N(seconds)},
		Headers: weir.Headers{Limit: "100", Remaining: "0", RetryAfter: strconv.FormatInt(seconds, 10)}}}
}

// NoDecision is what a client with the fallback Allow returns if the server has not decided.
func NoDecision(cause weir.Cause) Answer {
	return Answer{Decision: weir.Decision{Allowed: true, Source: weir.SourceFallback, Degraded: true, NoDecision: &weir.NoDecision{Cause: cause}}}
}

// NoDecisionDenied is what a client with the fallback Deny returns if the server has not decided.
func NoDecisionDenied(cause weir.Cause) Answer {
	a := NoDecision(cause)
	a.Decision.Allowed = false
	a.Decision.Denial = &weir.Denial{Code: weir.CodeLimiterUnavailable, Message: "The rate limiter is unavailable."}
	return a
}

// Misuse is the answer to an invalid call.
func Misuse(code string) Answer { return Answer{Err: &weir.MisuseError{Status: 422, Code: code}} }

// Asked returns the checks so far, in order.
func (f *Fake) Asked() []weir.Check {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]weir.Check(nil), f.asked...)
}

func (f *Fake) next(check weir.Check) (weir.Decision, error) {
	f.mu.Lock()
	f.asked = append(f.asked, check)
	var a Answer
	switch {
	case f.answer != nil:
		answer := f.answer
		f.mu.Unlock()
		a = answer(check)
	case len(f.script) == 0:
		f.mu.Unlock()
		panic("weirtest: the script has no answer left for the check of " + check.Subject)
	default:
		a, f.script = f.script[0], f.script[1:]
		f.mu.Unlock()
	}
	if a.Err != nil {
		return weir.Decision{}, a.Err
	}
	d := a.Decision
	if d.Subject == "" {
		d.Subject, d.Resource, d.Cost = check.Subject, check.Resource, check.Cost
		if d.Resource == "" {
			d.Resource = "default"
		}
	}
	return d, nil
}

// Check answers a check. Its default cost is 1.
func (f *Fake) Check(ctx context.Context, check weir.Check) (weir.Decision, error) {
	if err := ctx.Err(); err != nil {
		return weir.Decision{}, err
	}
	if check.Cost == 0 {
		check.Cost = 1
	}
	return f.next(check)
}

// Peek answers a check with cost 0.
func (f *Fake) Peek(ctx context.Context, check weir.Check) (weir.Decision, error) {
	if err := ctx.Err(); err != nil {
		return weir.Decision{}, err
	}
	check.Cost = 0
	return f.next(check)
}

// Explain answers like Check.
func (f *Fake) Explain(ctx context.Context, check weir.Check) (weir.Decision, error) {
	return f.Check(ctx, check)
}

// Wait answers like Check, and does not wait.
func (f *Fake) Wait(ctx context.Context, check weir.Check) (weir.Decision, error) {
	return f.Check(ctx, check)
}

// WithLease calls work with a lease whose checks are answered like Check.
func (f *Fake) WithLease(_ context.Context, check weir.Check, _ int64, work func(*weir.Lease) error) error {
	return work(weir.LeaseWithout(f, check))
}

// CheckBatch answers each check like Check. It stops at the first error.
func (f *Fake) CheckBatch(ctx context.Context, checks []weir.Check) ([]weir.Decision, error) {
	decisions := make([]weir.Decision, len(checks))
	for i, check := range checks {
		var err error
		if decisions[i], err = f.Check(ctx, check); err != nil {
			return nil, err
		}
	}
	return decisions, nil
}

var _ weir.Checker = (*Fake)(nil)
