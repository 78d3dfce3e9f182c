package dashboard

import (
	"slices"
	"strings"
	"time"

	"weir/internal/tenants"
)

// subjectVerb describes a change of a subject: "boosted API requests 100 to 200 until 23 Nov 2026,
// 10:00 UTC for". It is "" for a change of several fields, which the list of fields explains
// better.
func subjectVerb(e *tenants.AuditEntry, changes []fieldChange, names ruleNames, plans planNames) string {
	if e.Kind != "subject" || e.Action == "delete" || e.Action == "reset" || e.Action == "import" {
		return ""
	}
	var rules []string
	override, replaced := map[string]fieldChange{}, map[string]string{}
	var plan, state, version, next *fieldChange
	for i := range changes {
		c := &changes[i]
		parts := strings.Split(c.Path, "\x00")
		switch {
		case len(parts) == 3 && parts[0] == "overrides":
			if !slices.Contains(rules, parts[1]) {
				rules = append(rules, parts[1])
			}
			override[parts[2]] = *c
		case len(parts) == 2 && parts[0] == "replaced_limits":
			replaced[parts[1]] = c.After
		case c.Path == "plan":
			plan = c
		case c.Path == "plan_version":
			version = c
		case c.Path == "next_plan":
			next = c
		case c.Path == "state" && !(e.Before == nil && c.After == "active"):
			state = c
		}
	}
	switch {
	case len(rules) == 1 && plan == nil && state == nil:
		return overrideVerb(names.Of(rules[0]), override, replaced[rules[0]])
	case len(rules) == 0 && plan != nil && state == nil:
		if plan.After == "" {
			return "moved to the default plan"
		}
		return "changed the plan to " + plans.Of(plan.After) + " for"
	case len(rules) == 0 && plan == nil && state != nil:
		switch state.After {
		case "blocked":
			return "blocked"
		case "exempt":
			return "exempted"
		default:
			return "set active"
		}
	case len(rules) == 0 && version != nil && version.After != "":
		return "changed the plan from version " + nameOr(version.Before, "1") + " to version " + version.After + " for"
	case len(rules) == 0 && next != nil && e.Before != nil:
		if next.After == "" {
			return "canceled the scheduled change of the plan for"
		}
		return "scheduled the plan " + plans.Of(next.After) + " for"
	}
	return ""
}

// spokenText returns an instant in the form of a changed field for a sentence.
func spokenText(text string) string {
	at, err := time.Parse(localLayouts["minute"], text)
	if err != nil {
		return text
	}
	return spoken(at, "minute")
}

// overrideVerb does the same for the override of one rule, from the changes of its fields. replaced
// is the limit that the first override replaced; "": not known.
func overrideVerb(rule string, fields map[string]fieldChange, replaced string) string {
	limit, unlimited, ends := fields["limit"], fields["unlimited"], fields["expires_at"]
	switch {
	case unlimited.After == "yes":
		return "made " + rule + " unlimited for"
	case limit.After == "" && limit.Before == "":
		return "changed the override of " + rule + " for"
	case limit.After == "":
		return "removed the override of " + rule + " for"
	}
	from := firstOf(limit.Before, replaced)
	if from != "" {
		from += " "
	}
	if ends.After != "" {
		return "boosted " + rule + " " + from + "to " + limit.After + " until " + spokenText(ends.After) + " for"
	}
	return "set " + rule + " " + from + "to " + limit.After + " for"
}
