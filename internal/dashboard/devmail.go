package dashboard

import (
	"net/http"

	"weir/internal/mail"
	"weir/internal/tenants"
)

// devMail shows the mails that the demo keeps in place of sending them, to everybody. There is
// nothing to show, nor any page, where mail is sent or off.
func (d *dashboard) devMail(w http.ResponseWriter, r *http.Request) error {
	box := d.Mail.Box()
	if box == nil {
		return tenants.ErrNotFound
	}
	return d.render(w, r, http.StatusOK, devMailPage(box.Letters()))
}

// keptAt is when a letter came into the box.
func keptAt(l mail.Kept) moment { return moment{l.At} }
