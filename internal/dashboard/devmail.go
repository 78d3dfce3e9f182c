package dashboard

import (
	"net/http"

	"weir/internal/mail"
	"weir/internal/origin"
	"weir/internal/tenants"
)

// devMail shows the mails that the demo keeps instead of sending them, to everybody on this
// machine: links to sign in are among them. The host is checked too, because another site's name
// may resolve to this machine. Where mail is sent or off, there is no such page.
func (d *dashboard) devMail(w http.ResponseWriter, r *http.Request) error {
	box := d.Mail.Box()
	if box == nil || !origin.IsLocal(r.RemoteAddr) || !origin.IsLocal(r.Host) {
		return tenants.ErrNotFound
	}
	return d.render(w, r, http.StatusOK, devMailPage(box.Letters()))
}

// keptAt is when a letter came into the box.
func keptAt(l mail.Kept) moment { return moment{l.At} }
