package dashboard

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The palette offers what the buttons of all pages do. An action of an object is "WORD OBJECT",
// such as "enforce api-requests". It opens the page of the object with its form open, so that
// nothing is changed without seeing what it changes.

// tenantCommands need no object. Each opens a page, some with a form open.
var tenantCommands = []struct {
	title, path string
	right       tenants.Right
	operator    bool
}{
	{"Export configuration", "/settings", 0, false},
	{"Download usage as CSV", "/usage?format=csv&period=24h", 0, false},
	{"Download audit trail as CSV", "/audit?format=csv", 0, false},
	{"Show usage with a log scale", "/usage?period=24h&scale=log", 0, false},
	{"Create rule", "/rules/new", tenants.MayEdit, false},
	{"Restore deleted rule", "/audit?kind=rule", tenants.MayEdit, false},
	{"Create plan", "/plans/new", tenants.MayEdit, false},
	{"Create route", "/routes/new", tenants.MayEdit, false},
	{"Create API key", "/keys?open=create-api-key", tenants.MayManage, false},
	{"Invite member", "/members?open=invite-member", tenants.MayManage, false},
	{"Connect a billing provider", "/billing?open=connect-a-provider", tenants.MayManage, false},
	{"Map price to a plan", "/billing?open=map-price", tenants.MayManage, false},
	{"Billing events", "/billing/events", 0, false},
	{"Create notification endpoint", notificationsURL + "?open=create-endpoint", tenants.MayManage, false},
	{"Change security settings", securityURL + "?open=change-settings", tenants.MayManage, false},
	{"Customer page", customerPageURL, tenants.MayConfigure, false},
	{"Verify audit trail", "/audit?verify=1", 0, false},
	{"Send first check", "/start", 0, false},
	{"Account", "/account", 0, false},
	{"Sessions", "/sessions", 0, false},
	{"Create tenant", "/tenants?open=create-tenant", 0, true},
}

// objectCommands are actions of rules, plans, routes, keys, members and tenants, by their first
// word.
var objectCommands = []struct {
	word, kind, title, path string // path begins after that of the object
	right                   tenants.Right
}{
	{"edit", "Rule", "Edit rule", "/edit", tenants.MayEdit},
	{"history", "Rule", "Show history of", "/history", 0},
	{"enforce", "Rule", "Enforce", "?mode=enforce", tenants.MayEdit},
	{"shadow", "Rule", "Switch to shadow:", "?mode=shadow", tenants.MayEdit},
	{"off", "Rule", "Switch off", "?mode=off", tenants.MayEdit},
	{"delete", "Rule", "Delete rule", "?open=delete-rule", tenants.MayEdit},
	{"edit", "Plan", "Edit plan", "/edit", tenants.MayEdit},
	{"versions", "Plan", "Show versions of", "/versions", 0},
	{"publish", "Plan", "Publish version of", "/versions?open=publish-version", tenants.MayEdit},
	{"migrate", "Plan", "Migrate subjects of", "/versions", tenants.MayEdit},
	{"default", "Plan", "Make default:", "/edit?open=make-default", tenants.MayEdit},
	{"delete", "Plan", "Delete plan", "/edit?open=delete-plan", tenants.MayEdit},
	{"edit", "Route", "Edit route", "/edit", tenants.MayEdit},
	{"edit", "Billing endpoint", "Edit settings of", "?open=edit-settings", tenants.MayManage},
	{"secret", "Billing endpoint", "Add signing secret to", "?open=add-signing-secret", tenants.MayManage},
	{"rotate", "Billing endpoint", "Replace signing secrets of", "?open=replace-signing-secrets", tenants.MayManage},
	{"delete", "Billing endpoint", "Delete billing endpoint", "?open=delete-endpoint", tenants.MayManage},
	{"edit", "Notification endpoint", "Edit notification endpoint", "?open=edit-endpoint", tenants.MayManage},
	{"rotate", "Notification endpoint", "Rotate secret of", "?open=rotate-secret", tenants.MayManage},
	{"delete", "Notification endpoint", "Delete notification endpoint", "?open=delete-endpoint", tenants.MayManage},
	{"delete", "Route", "Delete route", "?open=delete-route", tenants.MayEdit},
	{"edit", "API key", "Edit key", "?open=edit-key", tenants.MayManage},
	{"rotate", "API key", "Rotate key", "?open=rotate-key", tenants.MayManage},
	{"revoke", "API key", "Revoke key", "?open=revoke-key", tenants.MayManage},
	{"role", "Member", "Change role of", "", tenants.MayManage},
	{"remove", "Member", "Remove member", "", tenants.MayManage},
	{"rename", "Tenant", "Rename tenant", "?open=rename-tenant", 0},
	{"tier", "Tenant", "Change tier of", "?open=change-tier", 0},
	{"quota", "Tenant", "Create quota for", "/quota", 0},
	{"suspend", "Tenant", "Suspend tenant", "?open=suspend-tenant", 0},
	{"reopen", "Tenant", "Reopen tenant", "?open=reopen-tenant", 0},
	{"delete", "Tenant", "Delete tenant", "?open=delete-tenant", 0},
}

// saysAll reports whether each word of the query begins a word of an action's name. To create
// something can be said in other words.
func saysAll(query, title string) bool {
	title = strings.ToLower(title)
	if rest, creates := strings.CutPrefix(title, "create "); creates {
		title = "create new add " + rest
	}
	for _, word := range strings.Fields(strings.ToLower(query)) {
		if !slices.ContainsFunc(strings.Fields(title), func(of string) bool { return strings.HasPrefix(of, word) }) {
			return false
		}
	}
	return true
}

// findCommands returns the actions without an object: those of the tenant, and of this browser.
func findCommands(_ context.Context, v *visit, query string) (out []foundItem, _ error) {
	if query == "" {
		return nil, nil
	}
	for _, c := range tenantCommands {
		if saysAll(query, c.title) && (c.right == 0 || v.actor().May(c.right)) && (!c.operator || v.actor().Operator()) {
			out = append(out, foundItem{Kind: "Action", Title: c.title, Path: c.path})
		}
	}
	for _, theme := range themes {
		if holds(query, "Theme: "+theme.Name, theme.Name+" theme", theme.Name+" mode") {
			out = append(out, foundItem{Kind: "Action", Title: "Theme: " + theme.Name, Form: "theme-switch", Value: theme.Value})
		}
	}
	for _, t := range v.frame.Others {
		if holds(query, "Switch to "+t.Name) {
			out = append(out, foundItem{Kind: "Action", Title: "Switch to " + t.Name, Form: "switch-tenant", Value: t.ID})
		}
	}
	if holds(query, "Sign out", "log out") {
		out = append(out, foundItem{Kind: "Action", Title: "Sign out", Form: "sign-out"})
	}
	return out, nil
}

// findObjectActions reads "WORD OBJECT".
func (d *dashboard) findObjectActions(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	word, name, ok := strings.Cut(query, " ")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return nil, nil
	}
	if strings.EqualFold(word, "invite") && strings.Contains(name, "@") && v.actor().May(tenants.MayManage) {
		return []foundItem{{Kind: "Action", Title: "Invite " + name, Path: "/members?open=invite-member&email=" + url.QueryEscape(name)}}, nil
	}
	found := map[string][]foundItem{} // by kind, read once
	for _, c := range objectCommands {
		if !strings.EqualFold(word, c.word) || c.right != 0 && !v.actor().May(c.right) {
			continue
		}
		objects, read := found[c.kind]
		if !read {
			if objects, err = d.findObjects(ctx, v, c.kind, name); err != nil {
				return nil, err
			}
			found[c.kind] = objects
		}
		for _, o := range objects {
			out = append(out, foundItem{Kind: "Action", Title: c.title + " " + o.Title, Note: o.Note, Path: o.Path + c.path})
		}
	}
	return out, nil
}

// findObjects returns objects of a kind by a part of their names, with the path of their actions.
func (d *dashboard) findObjects(ctx context.Context, v *visit, kind, name string) ([]foundItem, error) {
	switch kind {
	case "Rule":
		return d.findRules(ctx, v, name)
	case "Plan":
		plans, err := d.findPlans(ctx, v, name)
		for i := range plans {
			plans[i].Path = "/plans/" + url.PathEscape(strings.TrimPrefix(plans[i].Path, "/plans#"))
		}
		return plans, err
	case "Route":
		return d.findRoutes(ctx, v, name)
	case "API key":
		return d.findKeys(ctx, v, name)
	case "Member":
		return d.findMembers(ctx, v, name)
	case "Billing endpoint":
		return d.findBilling(ctx, v, name)
	case "Notification endpoint":
		return d.findNotified(ctx, v, name)
	}
	return d.findTenants(ctx, v, name)
}

// mostNames is how many keys, members or tenants are searched by a part of their names.
const mostNames = 1000

func (d *dashboard) findKeys(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	if query == "" || !v.actor().May(tenants.MayManage) {
		return nil, nil
	}
	keys, _, err := d.Store.Keys(ctx, v.actor(), tenants.Page{Limit: mostNames})
	for i := range keys {
		k := &keys[i]
		if len(out) < mostFound && k.RevokedAt == nil && holds(query, k.Name, k.Last4) {
			out = append(out, foundItem{Kind: "API key", Title: k.Name, Note: "ends in " + k.Last4, Path: "/keys/" + k.ID.String()})
		}
	}
	return out, err
}

// findMembers leads to the form of a member, if the person may change them.
func (d *dashboard) findMembers(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	if query == "" {
		return nil, nil
	}
	members, _, err := d.Store.Members(ctx, v.actor(), tenants.Page{Limit: mostNames})
	for i := range members {
		m := &members[i]
		if len(out) < mostFound && holds(query, m.Email) {
			path := "/members"
			if v.actor().May(tenants.MayManage) {
				path += "?open=" + editMember(m.ID)
			}
			out = append(out, foundItem{Kind: "Member", Title: m.Email, Note: string(m.Role), Path: path})
		}
	}
	return out, err
}

func (d *dashboard) findBilling(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	endpoints, _, err := d.Store.BillingEndpoints(ctx, v.actor(), tenants.Page{Limit: mostNames})
	for i := range endpoints {
		e := &endpoints[i]
		if len(out) < mostFound && holds(query, e.Name, e.Provider, "billing") {
			out = append(out, foundItem{Kind: "Billing endpoint", Title: nameOr(e.Name, e.Provider), Note: e.Provider, Path: "/billing/endpoints/" + e.ID.String()})
		}
	}
	return out, err
}

func (d *dashboard) findNotified(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	endpoints, _, err := d.Store.NotificationEndpoints(ctx, v.actor(), tenants.Page{Limit: mostNames})
	for i := range endpoints {
		e := &endpoints[i]
		if len(out) < mostFound && holds(query, e.Description, e.URL, "notification") {
			out = append(out, foundItem{Kind: "Notification endpoint", Title: nameOr(e.Description, e.URL), Note: e.URL, Path: notificationsURL + "/" + e.ID.String()})
		}
	}
	return out, err
}

// findOverrides reads "remove SUBJECT": the overrides of the registered subject with this name.
func (d *dashboard) findOverrides(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	word, subject, _ := strings.Cut(query, " ")
	subject = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(subject), "override "))
	if !strings.EqualFold(word, "remove") || limit.ValidName(subject) != nil || !v.actor().May(tenants.MayBoost) {
		return nil, nil
	}
	registered, err := d.Store.SubjectByName(ctx, v.actor(), subject)
	if errors.Is(err, tenants.ErrNotFound) {
		return nil, nil
	}
	names := d.ruleNames(ctx, v.actor().TenantID())
	for i := range registered.Overrides {
		if o := overrideViewOf(&registered.Overrides[i], v); o.Removable {
			out = append(out, foundItem{
				Kind: "Action", Title: "Remove override of " + subject, Note: names.Of(o.Rule) + ": " + o.Limit,
				Path: subjectURL(subject) + "?open=" + removeOverride(o.Rule),
			})
		}
	}
	return out, err
}

// removeOverride names the form that removes an override in an address.
func removeOverride(rule string) string { return "remove-" + rule }

// editMember names the form of a member in an address.
func editMember(id uuid.UUID) string { return "edit-" + id.String() }

func (d *dashboard) findTenants(ctx context.Context, v *visit, query string) (out []foundItem, err error) {
	if query == "" || !v.actor().Operator() || limit.ValidName(query) != nil {
		return nil, nil
	}
	list, _, err := d.Store.ListTenants(ctx, v.actor(), tenants.TenantFilter{Search: query}, tenants.Page{Limit: mostFound})
	for i := range list {
		out = append(out, foundItem{Kind: "Tenant", Title: nameOr(list[i].Name, list[i].Slug), Note: list[i].State, Path: tenantURL(list[i].Slug)})
	}
	return out, err
}

// ruleActions lists the actions of a rule, for a search that finds no other.
func ruleActions(v *visit, rule *foundItem) (out []foundItem) {
	for _, c := range objectCommands {
		if c.kind == "Rule" && (c.right == 0 || v.actor().May(c.right)) {
			out = append(out, foundItem{Kind: "Action", Title: c.title + " " + rule.Title, Path: rule.Path + c.path})
		}
	}
	return out
}
