package dashboard

import (
	"strings"
	"time"

	"weir/internal/tenants"
)

// frame is what stands around every page.
type frame struct {
	Title         string
	Email, Role   string
	Tenant        string         // "": none
	Others        []tenantChoice // to switch to
	Section       string         // the part of the navigation that the page belongs to
	DegradedSince string         // "": it is not
	DegradedAt    moment
}

type tenantChoice struct{ ID, Name string }

type navItem struct{ Path, Name string }

var navigation = []navItem{
	{"/", "Overview"}, {"/rules", "Rules"}, {"/plans", "Plans"}, {"/subjects", "Subjects"}, {"/keys", "API keys"}, {"/members", "Members"},
}

func newFrame(s *tenants.Session, path string, now, degradedSince time.Time) frame {
	f := frame{Email: s.Email}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	f.Section = "/" + first
	if s.Current != nil {
		f.Tenant, f.Role = tenantName(s.Current), string(s.Current.Role)
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

func tenantName(m *tenants.Membership) string {
	if m.Name != "" {
		return m.Name
	}
	return m.Slug
}
