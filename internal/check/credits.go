package check

import (
	"slices"
	"time"
	"unique"

	"weir/internal/engine"
	"weir/internal/limit"
)

// creditKeys creates the keys of the credits of a tenant's subjects.
type creditKeys struct {
	keys   Keys
	tenant limit.TenantID
}

// ruleCredits are the credits of a subject for one rule.
type ruleCredits struct {
	rule    unique.Handle[string] // slug
	credits *engine.Credits
}

var (
	creditsBytes = sizeOf[ruleCredits]() + sizeOf[engine.Credits]() + 32 // its two keys
	grantBytes   = sizeOf[limit.Grant]()
)

func (r *ruleCredits) bytes() int { return creditsBytes + len(r.credits.Grants)*grantBytes }

// of returns the credits of a subject.
func (k creditKeys) of(d *SubjectData) (out []ruleCredits) {
	for i := range d.Grants {
		g := &d.Grants[i]
		rule := unique.Make(g.Rule)
		at := slices.IndexFunc(out, func(r ruleCredits) bool { return r.rule == rule })
		if at < 0 {
			at = len(out)
			out = append(out, ruleCredits{rule, &engine.Credits{
				Key: k.keys.CreditsKey(k.tenant, 1, d.Subject, g.Rule), Outbox: k.keys.CreditsOutboxes(k.tenant, 1)[0],
			}})
		}
		if c := out[at].credits; len(c.Grants) < limit.MaxGrants {
			c.Grants = append(c.Grants, g.Grant)
		}
	}
	return out
}

// CreditsKey returns the key of what a subject has spent of its credits for a rule.
func (k Keys) CreditsKey(tenant limit.TenantID, partitions int, subject, rule string) string {
	b := append([]byte("credits"), tenant[:]...)
	at := k.places(tenant, partitions).ofSubject(subject)
	return at + string(k.name(appendPart(appendPart(b, rule), subject)).Append(nil))
}

// PartitionChange is the last change of the number of a tenant's partitions.
type PartitionChange struct {
	Partitions, Before int // Before is 0 if the number has never changed
	Changed            time.Time
}

// CreditsKeys returns the keys of what a subject has spent of its credits for a rule: that from
// which checks spend them at an instant, and the other one if the change moves the subject, else
// "". The numbers are those of the rule: plans and overrides change no window of a rule that spends
// credits, so moving computes the same instant.
func (k Keys) CreditsKeys(tenant limit.TenantID, c *PartitionChange, subject, rule string, n *limit.Numbers, nowMS int64) (key, other string) {
	key = k.CreditsKey(tenant, c.Partitions, subject, rule)
	if c.Before == 0 {
		return key, ""
	}
	old := k.CreditsKey(tenant, c.Before, subject, rule)
	switch {
	case old == key:
		return key, ""
	case nowMS < completeMS(c.Changed.UnixMilli(), n):
		return old, key
	}
	return key, old
}

// CreditsOutboxes returns the keys of the totals that a tenant's subjects have spent and that are
// not stored yet, one for each partition.
func (k Keys) CreditsOutboxes(tenant limit.TenantID, partitions int) []string {
	name := string(k.name(append([]byte("spent credits"), tenant[:]...)).Append(nil))
	var outboxes []string
	for _, at := range k.places(tenant, partitions).prefixes {
		outboxes = append(outboxes, at+name)
	}
	return outboxes
}

// modeFor returns the mode of a rule for a subject, which may be nil.
func (e *subjectEntry) modeFor(r *compiledRule) limit.Mode {
	if e != nil && e.state == Exempt {
		return limit.Shadow
	}
	return r.rule.Mode
}

// creditsFor returns the credits of a subject for a rule, or nil. The subject may be nil.
func (e *subjectEntry) creditsFor(r *compiledRule) *engine.Credits {
	if e != nil && e.credits != nil && r.credits && e.modeFor(r) == limit.Enforce {
		for i := range e.credits {
			if e.credits[i].rule.Value() == r.rule.Slug {
				return e.credits[i].credits
			}
		}
	}
	return nil
}

// left returns credits, or nil once they are spent or expired: the counter is then decided as
// without any.
func left(credits *engine.Credits, nowMS int64) *engine.Credits {
	if credits == nil || credits.Over(nowMS) {
		return nil
	}
	return credits
}

// takeCredits copies what an engine says of credits. A call that counts nothing has spent none,
// although its answer says what would be left.
func (r *RuleDecision) takeCredits(call *engine.Call, counter int) {
	v, credits := &call.Outcome.Verdicts[counter], call.Counters[counter].Credits
	r.Credits, r.CreditsSpent, r.Unopened = v.Credits, v.CreditsSpent, v.Unopened
	if credits != nil && v.Credits == 0 && !v.Unopened && !v.Degraded && !call.DryRun {
		credits.MarkSpent()
	}
}
