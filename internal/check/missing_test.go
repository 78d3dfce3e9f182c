package check

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// A rule that denies checks without an attribute it counts by cannot be avoided by leaving the
// attribute out. As with any denial, no rule is charged.
func TestMissingAttributeDenies(t *testing.T) {
	byIP := ruleFor("by-ip", "login", 2, "subject", "attributes.ip")
	byIP.OnMissingAttribute = limit.DenyCheck
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("all", 10), byIP}},
		SubjectData{Subject: "robot", State: Exempt}, SubjectData{Subject: "thief", State: Blocked})
	with := Request{Subject: "s", Resource: "login", Cost: 1, Attributes: []Attribute{{"ip", "203.0.113.7"}}}
	without := Request{Subject: "s", Resource: "login", Cost: 1}

	d := r.check(without)
	require.False(t, d.Allowed)
	require.Equal(t, AttributeMissing, d.Code)
	require.Empty(t, d.Skipped)
	denying := d.Rules[d.Deciding]
	require.Equal(t, "by-ip", denying.Rule.Slug)
	require.Equal(t, "ip", denying.Missing)
	require.Equal(t, limit.NeverMS, denying.RetryAfterMS)
	require.Equal(t, int64(2), denying.Quota)
	require.Equal(t, int64(10), d.Rules[0].Remaining, "nothing is charged")
	require.True(t, d.Rules[0].Allowed)
	require.False(t, r.check(Request{Subject: "s", Resource: "login"}).Allowed, "a cost of 0, too")

	require.True(t, r.check(with).Allowed)
	require.Equal(t, int64(9), r.remaining(Request{Subject: "s"}))
	require.Equal(t, SubjectBlocked, r.check(Request{Subject: "thief", Resource: "login", Cost: 1}).Code)
	robot := r.check(Request{Subject: "robot", Resource: "login", Cost: 1})
	require.True(t, robot.Allowed, "no rule denies an exempt subject")
	require.False(t, robot.Rules[1].Allowed, "but it is reported")

	// A denial that no wait can end is the answer, even beside an exhausted rule.
	r.check(Request{Subject: "s", Cost: 9})
	require.Equal(t, RateLimitExceeded, r.check(with).Code)
	require.Equal(t, AttributeMissing, r.check(without).Code)
}

// In shadow mode, the rule reports what it would deny, and the check is charged.
func TestMissingAttributeInShadow(t *testing.T) {
	byIP := ruleFor("by-ip", "login", 2, "attributes.ip")
	byIP.OnMissingAttribute, byIP.Mode = limit.DenyCheck, limit.Shadow
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("all", 10), byIP}})
	d := r.check(Request{Subject: "s", Resource: "login", Cost: 1})
	require.True(t, d.Allowed)
	require.Equal(t, "all", d.Rules[d.Deciding].Rule.Slug)
	require.Equal(t, "ip", d.Rules[1].Missing)
	require.False(t, d.Rules[1].Allowed)
	require.Equal(t, int64(9), r.remaining(Request{Subject: "s"}))
}

// Of several requests that are decided as one, none is charged.
func TestMissingAttributeTogether(t *testing.T) {
	byIP := ruleFor("by-ip", "login", 2, "attributes.ip")
	byIP.OnMissingAttribute = limit.DenyCheck
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("all", 10), byIP}})
	decisions, allowed := r.together(Request{Subject: "a", Resource: "default", Cost: 3}, Request{Subject: "b", Resource: "login", Cost: 1})
	require.False(t, allowed)
	require.True(t, decisions[0].Allowed)
	require.Equal(t, AttributeMissing, decisions[1].Code)
	require.Equal(t, int64(10), r.remaining(Request{Subject: "a"}))
	require.Equal(t, int64(10), r.remaining(Request{Subject: "b"}))
}

// A client gets no lease, but the denial.
func TestMissingAttributeOfALease(t *testing.T) {
	byIP := ruleFor("by-ip", "login", 200, "attributes.ip")
	byIP.OnMissingAttribute, byIP.Consistency = limit.DenyCheck, limit.Leased
	all := minute("all", 100)
	all.Consistency = limit.Leased
	for name, rules := range map[string][]limit.Rule{"alone": {byIP}, "beside another": {all, byIP}} {
		r := newRig(t, PolicyData{Rules: rules})
		lease, err := r.checker.Lease(t.Context(), r.policy, &Request{Subject: "s", Resource: "login", Cost: 20}, new(Scratch))
		require.NoError(t, err, name)
		require.Zero(t, lease.Units, name)
		require.Equal(t, AttributeMissing, lease.Decision.Code, name)
		require.Equal(t, int64(1), lease.Decision.Cost, name)
	}
}
