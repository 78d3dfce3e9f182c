package dashboard

import (
	"cmp"

	"weir/internal/tenants"
)

// auditWords are the sentences about objects that people do not create, change or delete by these
// words: nobody "creates a price".
var auditWords = map[string]map[string]string{
	"subject":       {"create": "registered", "update": "changed", "delete": "deleted the registration of"},
	"member":        {"create": "added the member", "delete": "removed the member"},
	"price":         {"create": "mapped the price", "update": "changed what the price stands for:", "delete": "removed the mapping of the price"},
	"portal":        {"create": "changed the settings of the"},
	"security":      {"create": "changed the"},
	"portal_link":   {"create": "created a customer link for"},
	"limit_request": {"create": "recorded a request for a higher limit of", "update": "changed the request for a higher limit of"},
	"credits":       {"create": "granted credits to", "update": "changed credits of", "revoke": "revoked credits of"},
}

// auditObjects are the objects of the other sentences, such as "deleted the rule".
var auditObjects = map[string]string{
	"rule": "the rule", "route": "the route", "plan": "the plan", "subject": "the subject", "key": "the API key", "member": "the member", "tenant": "the tenant",
	"endpoint": "the billing endpoint", "billing_event": "the billing event", "migration": "the migration of plan",
	"security": "the", "portal": "the settings of the", "portal_link": "the customer link of", "notification_endpoint": "the notification endpoint",
}

// auditVerb describes what somebody did with an object, whose name follows.
func auditVerb(e *tenants.AuditEntry) string {
	if words := auditWords[e.Kind][e.Action]; words != "" {
		return words
	}
	object := auditObjects[e.Kind]
	switch e.Action {
	case "create":
		return "created " + object
	case "update":
		return "changed " + object
	case "delete":
		return "deleted " + object
	case "publish":
		return "published a version of " + object
	case "rotate":
		return "rotated " + object
	case "revoke":
		return "revoked " + object
	case "reset":
		return "reset limits of"
	case "import":
		return "imported subjects"
	case "test":
		return "sent a test to " + object
	case "replay":
		if e.Kind == "billing_event" {
			return "replayed " + object
		}
		return "replayed a delivery to " + object
	case "dismiss":
		return "dismissed " + object
	case "compare":
		return "requested a comparison of " + object
	}
	return e.Action + " " + object
}

// toldVerb describes a change of which the sentence says all: "started moving 12 subjects from
// version 2 to the newest version of Pro". It is "" for other changes, which the list of
// fields explains better.
func toldVerb(e *tenants.AuditEntry, changes []fieldChange, names ruleNames, plans planNames) string {
	fields := map[string]fieldChange{}
	for _, c := range changes {
		fields[c.Path] = c
	}
	switch e.Kind {
	case "migration":
		return migrationVerb(e, fields, plans)
	case "limit_request":
		return map[string]string{"approved": "approved the request for a higher limit of", "refused": "refused the request for a higher limit of"}[fields["state"].After]
	case "credits":
		if units := fields["units"].After; e.Action == "create" && units != "" {
			return "granted " + units + " credits of " + nameOr(names.Of(fields["rule"].After), "a rule") + " to"
		}
	case "member":
		if role := fields["role"]; e.Action == "update" && len(changes) == 1 && role.After != "" {
			return "changed the role from " + role.Before + " to " + role.After + " for"
		}
		if fields["role"].After != "" && e.Action == "create" {
			return "added as " + fields["role"].After + ":"
		}
	}
	return subjectVerb(e, changes, names, plans)
}

// migrationVerb describes a migration of the subjects of a plan, whose name follows.
func migrationVerb(e *tenants.AuditEntry, fields map[string]fieldChange, plans planNames) string {
	switch fields["state"].After {
	case "canceling", "canceled":
		return "canceled the move of subjects of the plan"
	case "waiting":
		return "scheduled the change for all subjects of the plan"
	case "done":
		return "finished moving subjects of the plan"
	}
	if e.Action != "create" {
		return ""
	}
	who := "all subjects"
	switch n := fields["subjects"].After; n {
	case "":
	case "1":
		who = "1 subject"
	default:
		who = n + " subjects"
	}
	to := " to the newest version of"
	if target := fields["to"].After; target != "" && target != cmp.Or(fields["from"].After, e.Target) {
		to = " to the plan " + plans.Of(target) + " from"
	}
	from := ""
	if version := fields["from_version"].After; version != "" {
		from = " from version " + version
	}
	verb := "started moving "
	if fields["state"].After == "scheduled" {
		verb = "scheduled moving "
	}
	return verb + who + from + to
}
