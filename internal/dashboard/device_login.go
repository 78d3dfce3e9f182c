package dashboard

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/throttle"
)

// The page on which a member confirms the code that a terminal shows ("weir login"). The code alone
// gives nothing: a member with the right to create keys sees what is asked for, and approves it
// with their password, as for every new key.

// codeRules limit how often codes are tried: by person and address, by network, and by person.
var codeRules = throttle.ByNetwork(
	limit.Rule{Slug: "person-address", Algorithm: limit.SlidingWindowLog, Limit: 20, Window: throttle.Every(10 * time.Minute)},
	limit.Rule{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 60, Window: throttle.Every(10 * time.Minute)},
	limit.Rule{Slug: "person", Algorithm: limit.TokenBucket, Limit: 100, Window: throttle.Every(24 * time.Hour)},
)

const (
	deviceURL     = "/device"
	denyDeviceURL = "/device/deny"
	wrongDevice   = "No terminal waits with this code. Codes are valid for 10 minutes and work once. Run weir login again."
)

// deviceView is the form for a code, or the sign-in of a code.
type deviceView struct {
	Form   *form
	Login  *deviceLoginView // nil: ask for the code
	Tenant string
}

type deviceLoginView struct {
	ID, Code, Machine, Address, KeyName string
	Rights                              []string // in words
	Asked, Ends                         moment
	KeyLife                             string
}

func (d *dashboard) devicePage(w http.ResponseWriter, r *http.Request, v *visit) error {
	f := &form{}
	code := strings.TrimSpace(r.URL.Query().Get("code"))
	if code == "" {
		return d.showDevice(w, r, v, http.StatusOK, &deviceView{Form: f})
	}
	f.values = r.URL.Query()
	login, status, err := d.deviceLogin(w, r, v, f, code)
	if err != nil || status != 0 {
		return d.deviceRefused(w, r, v, f, status, err)
	}
	view := deviceView{Form: &form{}, Login: deviceLoginOf(&login)}
	return d.showDevice(w, r, v, http.StatusOK, &view)
}

// deviceLogin looks a code up. A status other than 0 means that the form has a problem.
func (d *dashboard) deviceLogin(w http.ResponseWriter, r *http.Request, v *visit, f *form, code string) (login tenants.DeviceLogin, status int, err error) {
	if wait := d.codes.Take(r.Context(), v.session.PersonID.String(), networksOf(r).Names()); wait > 0 {
		return login, tooMany(w, f, wait), nil
	}
	login, err = d.Store.DeviceLogin(r.Context(), code)
	if errors.Is(err, tenants.ErrNotFound) {
		f.problem = wrongDevice
		return login, http.StatusNotFound, nil
	}
	return login, 0, err
}

func (d *dashboard) deviceRefused(w http.ResponseWriter, r *http.Request, v *visit, f *form, status int, err error) error {
	if err != nil {
		return err
	}
	return d.showDevice(w, r, v, status, &deviceView{Form: f})
}

func (d *dashboard) showDevice(w http.ResponseWriter, r *http.Request, v *visit, status int, view *deviceView) error {
	v.frame.Title, view.Tenant = "Sign in a terminal", v.frame.Tenant
	return d.render(w, r, status, devicePage(v.frame, view))
}

func deviceLoginOf(l *tenants.DeviceLogin) *deviceLoginView {
	out := &deviceLoginView{
		ID: l.ID.String(), Code: l.UserCode, Machine: l.Machine, Address: l.Address, KeyName: l.KeyName(),
		Asked: moment{l.CreatedAt}, Ends: moment{l.ExpiresAt}, KeyLife: inWords(tenants.DeviceKeyLife),
	}
	for _, choice := range scopeChoices {
		for _, scope := range l.Scopes {
			if scope == choice.Scope {
				out.Rights = append(out.Rights, choice.Text)
			}
		}
	}
	return out
}

func (d *dashboard) approveDevice(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	return d.settleDevice(w, r, v, f, func(login tenants.DeviceLogin) (said string, err error) {
		return "Approved. " + login.Machine + " is signed in within a few seconds. To sign it out, revoke its key “" + login.KeyName() + "”.",
			d.Store.ApproveDeviceLogin(r.Context(), v.session, login)
	})
}

func (d *dashboard) denyDevice(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	return d.settleDevice(w, r, v, f, func(login tenants.DeviceLogin) (said string, err error) {
		return "Denied. " + login.Machine + " gets no key.", d.Store.DenyDeviceLogin(r.Context(), v.session, login)
	})
}

// settleDevice decides about the sign-in that the member has seen, which the form names.
func (d *dashboard) settleDevice(w http.ResponseWriter, r *http.Request, v *visit, f *form, settle func(tenants.DeviceLogin) (string, error)) error {
	login, status, err := d.deviceLogin(w, r, v, f, f.Get("code"))
	if err != nil || status != 0 {
		return d.deviceRefused(w, r, v, f, status, err)
	}
	said, err := "", tenants.ErrNotFound
	if login.ID.String() == f.Get("login") {
		said, err = settle(login)
	}
	if errors.Is(err, tenants.ErrNotFound) {
		f.problem = wrongDevice
		return d.showDevice(w, r, v, http.StatusNotFound, &deviceView{Form: f})
	}
	if err != nil {
		return err
	}
	return d.done(w, r, "/keys", said)
}
