package dashboard

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"weir/internal/tenants"
)

type memberRow struct {
	Email, Role  string
	Invited, You bool
	Since        moment
}

type membersView struct {
	Members []memberRow
	Next    string
	Later   bool
}

func (d *dashboard) members(w http.ResponseWriter, r *http.Request, v *visit) error {
	after := r.URL.Query().Get("after")
	members, next, err := d.Store.Members(r.Context(), v.actor(), tenants.Page{Limit: pageSize, After: after})
	if err != nil {
		return err
	}
	view := membersView{Later: after != ""}
	if next != "" {
		view.Next = withCursor("/members", url.Values{}, next)
	}
	for _, m := range members {
		view.Members = append(view.Members, memberRow{
			Email: m.Email, Role: string(m.Role), Invited: m.State == tenants.MemberInvited, You: m.PersonID == v.session.PersonID,
			Since: moment{m.CreatedAt},
		})
	}
	v.frame.Title = "Members"
	return d.render(w, r, http.StatusOK, membersPage(v.frame, &view))
}

type sessionRow struct {
	ID, Device, Address string
	This                bool
	Opened, Seen        moment
}

// sessions lists where the person is signed in.
func (d *dashboard) sessions(w http.ResponseWriter, r *http.Request, v *visit) error {
	open, err := d.Store.OpenSessions(r.Context(), v.session)
	if err != nil {
		return err
	}
	rows := make([]sessionRow, len(open))
	for i, s := range open {
		rows[i] = sessionRow{
			ID: s.ID.String(), Device: deviceName(s.UserAgent), Address: s.Address,
			This: s.ID == v.session.ID, Opened: moment{s.CreatedAt}, Seen: moment{s.SeenAt},
		}
	}
	v.frame.Title = "Your sessions"
	return d.render(w, r, http.StatusOK, sessionsPage(v.frame, rows))
}

// The marks by which a browser and its system are told in what it says of itself. Their order
// counts: most browsers also name those that they are like.
var (
	browsers = [][2]string{{"Edg/", "Edge"}, {"OPR/", "Opera"}, {"Firefox/", "Firefox"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"}, {"curl/", "curl"}}
	systems  = [][2]string{
		{"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Windows", "Windows"}, {"Mac OS X", "macOS"}, {"CrOS", "ChromeOS"}, {"Linux", "Linux"},
	}
)

// deviceName says in two words what a browser says of itself in twenty.
func deviceName(userAgent string) string {
	find := func(marks [][2]string) string {
		for _, m := range marks {
			if strings.Contains(userAgent, m[0]) {
				return m[1]
			}
		}
		return ""
	}
	browser, system := find(browsers), find(systems)
	switch {
	case browser != "" && system != "":
		return browser + " on " + system
	case browser+system != "":
		return browser + system
	}
	return nameOr(userAgent, "unknown browser")
}

// endSession ends one of the person's sessions, or all but this one.
func (d *dashboard) endSession(w http.ResponseWriter, r *http.Request, v *visit) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	which := r.PostForm.Get("session")
	if which == "others" {
		if err := d.Store.EndOtherSessions(r.Context(), v.session); err != nil {
			return err
		}
	} else {
		id, err := uuid.Parse(which)
		if err != nil {
			return tenants.ErrNotFound
		}
		if err := d.Store.EndSession(r.Context(), v.session, id); err != nil {
			return err
		}
	}
	http.Redirect(w, r, "/sessions", http.StatusSeeOther)
	return nil
}
