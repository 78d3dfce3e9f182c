package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// An error of a form shows how to fix it, with the fix of the admin API. A fix that only repeats
// the error is omitted.
func TestFormFixes(t *testing.T) {
	for _, c := range []struct {
		problem *limit.Problem
		fix     string
	}{
		{limit.Wrong("Use a later time.", "must be in the future"), "Use a later time."},
		{limit.MustBe("a whole number, such as 100"), ""},
		{formLine{Number: 2, Text: "x"}.problem(limit.MustBe("NAME = SOURCE")), ""},
		{limit.OneOf("allow, deny, local"), ""},
		{limit.NotListed("GET /v1/plans", "Use the slug of a plan %s.", "must be the slug of a plan"), "Use the slug of a plan that exists."},
		{limit.NotListed("GET /v1/plans/{plan}/versions", "Use one %s, or omit it.", "names no version of this plan"), "Use one that exists, or omit it."},
	} {
		var f form
		require.Empty(t, f.Fix("field"))
		err := &tenants.InvalidError{Fields: []limit.FieldError{limit.FieldProblem("field", c.problem), limit.FieldProblem("field", isRequired)}}
		require.Equal(t, http.StatusUnprocessableEntity, f.refuse(err))
		require.Equal(t, c.problem.Message, f.Error("field"), "the first error is kept")
		require.Equal(t, c.fix, f.Fix("field"), c.problem.Message)
	}
	var f form
	require.Zero(t, f.refuse(errors.New("not about the input")))
	require.False(t, f.invalid())
}

// Pages show the fixes of errors of the store, of a form, and of a rule's preview.
func TestPagesShowFixes(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	leased := []string{"slug", "x", "consistency", "leased", "penalty", "1", "penalty_unit", "m"}
	for name, c := range map[string]struct {
		got   page
		fixes []string
	}{
		"store":   {b.write("/subjects/user_7", url.Values{"do": {"override"}, "reason": {"x"}, "rule": {"requests"}, "limit": {"5"}, "expires_at": {"2001-01-01T00:00"}}), []string{"Use a later time."}},
		"form":    {b.write("/subjects/user_7", url.Values{"do": {"plan"}, "reason": {"x"}, "next_plan_at": {"2099-01-01T00:00"}}), []string{"Choose a plan, or clear the time."}},
		"rule":    {b.post("/rules", s.ruleForm(leased...)), []string{"Choose strict, or remove the penalty."}},
		"preview": {b.preview(leased...), []string{"Choose strict, or remove the penalty."}},
		"route":   {b.post("/routes", s.routeForm("resources", "/x -> a*\n/y//z")), []string{"Remove the *.", "Remove them."}},
	} {
		for _, fix := range c.fixes {
			require.Contains(t, c.got.body, fix, name)
		}
	}
}
