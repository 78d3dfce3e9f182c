package check

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
)

// watchedEngine requires that no turn is held while it evaluates.
type watchedEngine struct {
	engine.Engine
	t    *testing.T
	held *int
}

func (e watchedEngine) Evaluate(ctx context.Context, calls ...*engine.Call) {
	require.Zero(e.t, *e.held, "a turn is held while the counter store is asked")
	e.Engine.Evaluate(ctx, calls...)
}

// Long work is done in turns, and without any while the counter store answers.
func TestLongWorkTakesTurns(t *testing.T) {
	var data PolicyData
	for i := range fewInspected + 1 {
		rule := minute(fmt.Sprintf("rule-%02d", i), 100)
		rule.Resource = fmt.Sprint("r", i%2)
		data.Rules = append(data.Rules, rule)
	}
	r := newRig(t, data)
	held, turns := 0, 0
	r.store.Engine = watchedEngine{r.store.Engine, t, &held}
	turn := func() (end func()) {
		held++
		turns++
		return func() { held-- }
	}
	inspect := func() (SubjectLimits, error) {
		return r.checker.InspectInTurns(t.Context(), r.policy, Request{Subject: "ada"}, func() (func(), error) { return turn(), nil })
	}

	requests := []Request{{Subject: "ada", Resource: "r0", Cost: 2}, {Subject: "ada", Resource: "r1", Cost: 3}, {Subject: "bob", Resource: "r0", Cost: 1}}
	inTurns, err := r.checker.CheckInTurns(t.Context(), r.policy, requests, new(Scratch), turn)
	require.NoError(t, err)
	require.Equal(t, 2, turns)
	require.Zero(t, held)
	again, err := r.checker.Check(t.Context(), r.policy, requests)
	require.NoError(t, err)
	for i := range requests {
		require.Equal(t, again[i].Allowed, inTurns[i].Allowed)
		require.Equal(t, again[i].Rules[0].Remaining, inTurns[i].Rules[0].Remaining-requests[i].Cost)
	}
	_, err = r.checker.CheckInTurns(t.Context(), r.policy, []Request{{Subject: "ada", Plan: "none"}}, new(Scratch), turn)
	require.ErrorAs(t, err, new(*UnknownPlanError))
	require.Zero(t, held)

	turns = 0
	limits, err := inspect()
	require.NoError(t, err)
	require.Equal(t, 2, turns)
	require.Zero(t, held)
	require.Equal(t, r.inspect(Request{Subject: "ada"}), limits)
	busy := errors.New("busy")
	for fails := range 2 {
		calls := 0
		_, err = r.checker.InspectInTurns(t.Context(), r.policy, Request{Subject: "ada"}, func() (func(), error) {
			if calls++; calls > fails {
				return nil, busy
			}
			return turn(), nil
		})
		require.ErrorIs(t, err, busy)
		require.Zero(t, held)
	}
	turns = 0
	r.policy = r.compile(PolicyData{Rules: data.Rules[:fewInspected]})
	_, err = inspect()
	require.NoError(t, err)
	require.Zero(t, turns, "a few rules need none")
}

// Rules that are off cost a check nothing: there can be any number of them for a resource.
func TestOffRulesAreNotMatched(t *testing.T) {
	data := PolicyData{Rules: []limit.Rule{minute("on", 5)}}
	for i := range 100 {
		off := minute(fmt.Sprint("off-", i), 5)
		off.Mode = limit.Off
		data.Rules = append(data.Rules, off)
	}
	r := newRig(t, data)
	require.Len(t, r.policy.matching(nil, "default"), 1)
	d, err := r.checker.Check(t.Context(), r.policy, []Request{{Subject: "ada", Resource: "default", Cost: 1, Explain: true}})
	require.NoError(t, err)
	require.Len(t, d[0].Rules, 1)
	skipped := 0
	for s := range d[0].EachSkipped() {
		require.Equal(t, ModeOff, s.Reason)
		skipped++
	}
	require.Equal(t, 100, skipped)
}
