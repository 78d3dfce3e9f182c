package dashboard

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"weir/internal/tenants"
)

// frame has what every page shows around its content.
type frame struct {
	Title         string
	Email, Role   string
	Tenant        string // "" if there is none
	TenantID      string // for forms
	May           rights // what to show; the handlers enforce it
	Said          string // message about the last action; "" for none
	Undo          *undo  // how to undo the last action; nil: not with one click
	Navigation    []navGroup
	Others        []tenantChoice // the tenants to switch to
	Section       string         // the navigation entry of this page
	DegradedSince string         // "" unless Redis is unavailable
	DegradedAt    moment
	Requests      int64 // of customers, which wait for a decision; at most 100
}

type tenantChoice struct{ ID, Name string }

// rights says what the user may change.
type rights struct{ Reset, Boost, Edit, Configure, Manage, Own, Operate bool }

func rightsOf(a tenants.Actor) rights {
	return rights{
		Reset: a.May(tenants.MayReset), Boost: a.May(tenants.MayBoost), Edit: a.May(tenants.MayEdit),
		Configure: a.May(tenants.MayConfigure),
		Manage:    a.May(tenants.MayManage), Own: a.May(tenants.MayOwn), Operate: a.Operator(),
	}
}

type navItem struct{ Path, Name, Icon string }

type navGroup struct {
	Name  string
	Items []navItem
}

var navigation = []navGroup{
	{"Monitor", []navItem{{"/", "Overview", "layout-dashboard"}, {"/decisions", "Decisions", "activity"}, {"/usage", "Usage", "chart-column"}, {"/audit", "Audit trail", "scroll-text"}}},
	{"Limits", []navItem{{"/rules", "Rules", "gauge"}, {"/plans", "Plans", "layers"}, {"/routes", "Routes", "route"}, {"/subjects", "Subjects", "users"}, {requestsURL, "Requests", "trending-up"}}},
	{"Try", []navItem{{"/tester", "Tester", "flask-conical"}, {"/playground", "Playground", "circle-play"}}},
	{"Tenant", []navItem{{"/keys", "API keys", "key-round"}, {"/members", "Members", "user-plus"}, {"/billing", "Billing", "arrow-left-right"}, {"/metered", "Metered usage", "download"}, {"/settings", "Settings", "settings"}}},
}

// operating lists the pages for the operator of the service.
var operating = navGroup{"Service", []navItem{{"/tenants", "Tenants", "building-2"}, {"/instances", "Instances", "server"}}}

func newFrame(s *tenants.Session, path string, now, degradedSince time.Time) frame {
	f := frame{Email: s.Email, Navigation: navigation}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	f.Section = "/" + first
	if s.Current != nil {
		f.Tenant, f.Role = tenantName(s.Current), string(s.Current.Role)
		f.TenantID, f.May = s.Current.TenantID.String(), rightsOf(s.Actor())
	}
	if f.May.Operate {
		f.Navigation = append(slices.Clip(navigation), operating)
	}
	for i := range s.Memberships {
		if m := &s.Memberships[i]; s.Current != nil && m.TenantID != s.Current.TenantID {
			f.Others = append(f.Others, tenantChoice{m.TenantID.String(), tenantName(m)})
		}
	}
	if !degradedSince.IsZero() {
		f.DegradedSince, f.DegradedAt = inWords(max(now.Sub(degradedSince), time.Second)), moment{degradedSince}
	}
	return f
}

// initials returns the letters of an avatar: those of "ann.lee@example.com" are "al".
func initials(email string) string {
	name, _, _ := strings.Cut(email, "@")
	var out string
	for _, part := range strings.FieldsFunc(name, func(c rune) bool { return !unicode.IsLetter(c) }) {
		first, _ := utf8.DecodeRuneInString(part)
		if out += string(first); utf8.RuneCountInString(out) == 2 {
			break
		}
	}
	return out
}

func tenantName(m *tenants.Membership) string {
	if m.Name != "" {
		return m.Name
	}
	return m.Slug
}
