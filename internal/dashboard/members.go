package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/tenants"
)

type memberRow struct {
	ID, Email, Role string
	Invited, You    bool
	Since           moment
	Link            string // state of the invitation in words; "" for a member who has joined
	LinkTone        string // of the badge
	Mine            bool   // the viewer may change it: the invitation, or the role
}

type membersView struct {
	Members []memberRow
	Next    string
	Later   bool
	Form    form     // of an invitation
	Change  form     // of a refused change of a role, or a refused removal
	Roles   []option // that the viewer may invite
	MailOn  bool
	Email   string   // of the invitation form
	New     *newLink // a new invitation whose link is not mailed
}

// newLink is shown once, because the token is not stored.
type newLink struct{ Email, URL string }

func (d *dashboard) members(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.renderMembers(w, r, v, http.StatusOK, &membersView{Email: r.URL.Query().Get("email")})
}

func (d *dashboard) renderMembers(w http.ResponseWriter, r *http.Request, v *visit, status int, view *membersView) error {
	after := r.URL.Query().Get("after")
	members, next, err := d.Store.Members(r.Context(), v.actor(), tenants.Page{Limit: pageSize, After: after})
	if err != nil {
		return err
	}
	var invited []uuid.UUID
	for i := range members {
		if members[i].State == tenants.MemberInvited {
			invited = append(invited, members[i].ID)
		}
	}
	links, err := d.Store.Invitations(r.Context(), v.actor(), invited)
	if err != nil {
		return err
	}
	view.Later, view.MailOn = after != "", d.Mail.On()
	if next != "" {
		view.Next = withCursor("/members", url.Values{}, next)
	}
	for i := range members {
		m := &members[i]
		row := memberRow{
			ID: m.ID.String(), Email: m.Email, Role: string(m.Role), Invited: m.State == tenants.MemberInvited, You: m.PersonID == v.session.PersonID,
			Since: moment{m.CreatedAt},
		}
		row.Mine = v.actor().May(tenants.MayManage) && (m.Role != tenants.Owner || v.actor().May(tenants.MayOwn)) && !row.You
		if row.Invited {
			link, ok := links[m.ID]
			row.Link, row.LinkTone = linkWords(link, ok, v.now)
		}
		view.Members = append(view.Members, row)
	}
	for _, role := range tenants.Roles {
		if role != tenants.Owner || v.actor().May(tenants.MayOwn) {
			view.Roles = append(view.Roles, option{string(role), roleNames[role]})
		}
	}
	v.frame.Title = "Members"
	return d.render(w, r, status, membersPage(v.frame, view))
}

// changeMember gives a member another role, or removes them. Both end the member's sessions in this
// tenant, so that it takes effect immediately.
func (d *dashboard) changeMember(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return tenants.ErrNotFound
	}
	said := ""
	switch f.Get("do") {
	case "role":
		var m tenants.Member
		m, err = d.Store.EditMember(r.Context(), v.actor(), id, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Role(f.Get("role")) })
		said = "Role of " + m.Email + " changed to " + string(m.Role) + "."
	case "remove":
		err, said = d.Store.RemoveMember(r.Context(), v.actor(), id, tenants.Match{}), "Member removed and signed out of this tenant."
	default:
		return errForm
	}
	if status := f.refuse(err); status != 0 {
		return d.renderMembers(w, r, v, status, &membersView{Change: *f})
	}
	if err != nil {
		return err
	}
	return d.done(w, r, "/members", said)
}

// roleNames describe each role.
var roleNames = map[tenants.Role]string{
	tenants.Owner: "Owner: everything, including owners", tenants.Admin: "Admin: everything except owners", tenants.Editor: "Editor: rules, plans and subjects",
	tenants.Support: "Support: resets and temporary overrides", tenants.Viewer: "Viewer: read only",
}

// linkWords describe the state of an invitation.
func linkWords(link tenants.Link, exists bool, now time.Time) (words, tone string) {
	const slow = time.Hour // a mail that has been pending for longer was lost with its instance
	switch {
	case !exists:
		return "invited, no link", "warn"
	case !link.ExpiresAt.After(now):
		return "invited, link expired", "warn"
	case link.Mail == tenants.MailFailed, link.Mail == tenants.MailWaiting && now.Sub(link.SentAt) > slow:
		return "invited, email failed", "bad"
	case link.Mail == tenants.MailWaiting:
		return "invited, sending email", ""
	case link.Mail == tenants.MailOff:
		return "invited", "warn"
	}
	return "invited, email sent", "warn"
}

// invite creates an invitation and sends it.
func (d *dashboard) invite(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	made, err := d.Store.InviteMember(r.Context(), v.actor(), f.Get("email"), tenants.Role(f.Get("role")))
	if status := refuseInvitation(w, f, err); status != 0 {
		return d.renderMembers(w, r, v, status, &membersView{Form: *f})
	}
	if err != nil {
		return err
	}
	return d.sendInvitation(w, r, v, made, made.Email+" is invited.")
}

// refuseInvitation is form.refuse for an invitation, of which there may be too many.
func refuseInvitation(w http.ResponseWriter, f *form, err error) int {
	var often *tenants.InvitationsError
	if !errors.As(err, &often) {
		return f.refuse(err)
	}
	status := tooMany(w, f, often.RetryAfter)
	f.problem = "Too many invitations of this tenant, from your address, or of this person. Try again in " + inWords(often.RetryAfter) + "."
	return status
}

// resend creates a new link for an invited person; the previous one becomes void.
func (d *dashboard) resend(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return tenants.ErrNotFound
	}
	made, err := d.Store.ResendInvitation(r.Context(), v.actor(), id)
	if status := refuseInvitation(w, f, err); status != 0 {
		return d.renderMembers(w, r, v, status, &membersView{Form: form{problem: f.problem}})
	}
	if err != nil {
		return err
	}
	return d.sendInvitation(w, r, v, made, "New link sent to "+made.Email+". The old link is void.")
}

// sendInvitation mails a link, or shows it once if mail is off. That page is the answer to the form
// itself, because a redirect would have to contain the link.
func (d *dashboard) sendInvitation(w http.ResponseWriter, r *http.Request, v *visit, made tenants.Invitation, said string) error {
	SendInvitation(d.Store, d.Mail, d.Logger, made)
	link := UnsentLink(d.Mail, made)
	if link == "" {
		return d.done(w, r, "/members", said)
	}
	return d.renderMembers(w, r, v, http.StatusOK, &membersView{New: &newLink{made.Email, link}})
}

// withdraw withdraws an invitation. It has no effect if the person has joined in the meantime.
func (d *dashboard) withdraw(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return tenants.ErrNotFound
	}
	gone, err := d.Store.WithdrawInvitation(r.Context(), v.actor(), id)
	if status := f.refuse(err); status != 0 {
		return d.renderMembers(w, r, v, status, &membersView{Form: form{problem: f.problem}})
	}
	if err != nil {
		return err
	}
	return d.done(w, r, "/members", "Invitation of "+gone.Email+" withdrawn.")
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
	v.frame.Title = "Sessions"
	return d.render(w, r, http.StatusOK, sessionsPage(v.frame, rows))
}

// The marks of browsers and systems in User-Agent headers. Their order matters: most browsers also
// name those that they are compatible with.
var (
	browsers = [][2]string{{"Edg/", "Edge"}, {"OPR/", "Opera"}, {"Firefox/", "Firefox"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"}, {"curl/", "curl"}}
	systems  = [][2]string{
		{"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Windows", "Windows"}, {"Mac OS X", "macOS"}, {"CrOS", "ChromeOS"}, {"Linux", "Linux"},
	}
)

// deviceName summarizes a User-Agent header in two words.
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
	if err := d.maySwitch(r.Context(), v); err != nil {
		return err
	}
	which := r.PostForm.Get("session")
	if which == "others" {
		if err := d.Store.EndOtherSessions(r.Context(), v.session); err != nil {
			return err
		}
		if _, err := d.rememberDevice(w, r, v.session.Email, true); err != nil {
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
