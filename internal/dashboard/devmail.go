package dashboard

import (
	"net/http"

	"weir/internal/mail"
	"weir/internal/origin"
	"weir/internal/tenants"
)

// devMail shows the mails that the demo stores instead of sending them. It includes sign-in links,
// so it is only for this machine. It also checks the host, because another site's name may resolve
// to this machine. If mail is sent or off, the page does not exist.
func (d *dashboard) devMail(w http.ResponseWriter, r *http.Request) error {
	box := d.Mail.Box()
	if box == nil || !origin.IsLocal(r.RemoteAddr) || !origin.IsLocal(r.Host) {
		return tenants.ErrNotFound
	}
	return d.render(w, r, http.StatusOK, devMailPage(box.Letters()))
}

// keptAt is when a letter was stored.
func keptAt(l mail.Kept) moment { return moment{l.At} }
