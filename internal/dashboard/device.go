package dashboard

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"
	"time"

	"weir/internal/tenants"
)

// deviceCookie names the browser for the accounts that have signed in with it. It proves only that:
// it signs nobody in, and stays when the session ends. Its failed sign-ins have a limit of their
// own, so unknown clients who guess passwords cannot lock the owner of the account out of it. A new
// password, and a sign-out everywhere else, end that browsers are known, because a cookie may have
// been stolen.
const deviceCookie = "__Host-weir-device"

const (
	deviceLife = tenants.BrowserLife
	// maxDeviceAccounts is the number of accounts that a browser is remembered for, the ones that
	// signed in last.
	maxDeviceAccounts = 5
	deviceID          = 16 // bytes, random
	deviceMAC         = 16 // bytes
	deviceEntry       = deviceID + 8 + deviceMAC
)

// device is the part of a cookie for one account: an id, the time of the sign-in and a MAC of both
// and the account.
type device [deviceEntry]byte

func (d *dashboard) newDevice(account string, since time.Time) (out device) {
	_, _ = rand.Read(out[:deviceID]) // never fails: the runtime aborts instead
	return d.signDevice(account, out, since)
}

// signDevice returns the device with a time and its MAC: the current time, or the one from which
// browsers are known, if it is a moment later.
func (d *dashboard) signDevice(account string, out device, since time.Time) device {
	binary.BigEndian.PutUint64(out[deviceID:], uint64(max(0, d.Now().Unix(), since.Unix())))
	copy(out[deviceID+8:], d.deviceMAC(account, &out))
	return out
}

func (d *dashboard) deviceMAC(account string, of *device) []byte {
	mac := hmac.New(sha256.New, d.deviceKey)
	mac.Write([]byte(account))
	mac.Write([]byte{0})
	mac.Write(of[:deviceID+8])
	return mac.Sum(nil)[:deviceMAC]
}

// belongs reports whether the device signed in to this account within deviceLife.
func (d *dashboard) belongs(of *device, account string) bool {
	return hmac.Equal(of[deviceID+8:], d.deviceMAC(account, of)) && d.Now().Unix()-of.signedIn() < int64(deviceLife/time.Second)
}

// signedIn returns the time of the sign-in, in seconds. A forged one fails the MAC.
func (of *device) signedIn() int64 { return int64(binary.BigEndian.Uint64(of[deviceID:])) }

// devicesOf returns the well-formed parts of a request's cookie.
func devicesOf(r *http.Request) (all []device) {
	cookie, err := r.Cookie(deviceCookie)
	if err != nil || len(cookie.Value) > maxDeviceAccounts*2*deviceEntry {
		return nil
	}
	for text := range strings.SplitSeq(cookie.Value, ".") {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
		if err == nil && len(raw) == deviceEntry && len(all) < maxDeviceAccounts {
			all = append(all, device(raw))
		}
	}
	return all
}

// deviceFor returns the id of the browser if it has signed in to this account before, and not
// before browsers were forgotten.
func (d *dashboard) deviceFor(ctx context.Context, r *http.Request, email string) (id string, known bool, err error) {
	account := accountKey(email)
	for _, of := range devicesOf(r) {
		if d.belongs(&of, account) {
			since, err := d.Store.BrowsersSince(ctx, email)
			return string(of[:deviceID]), err == nil && of.signedIn() >= since.Unix(), err
		}
	}
	return "", false, nil
}

// rememberDevice sets the cookie after a sign-in, and reports whether the browser is new to the
// account. A known browser keeps its id. If browsers were forgotten just now by this person, the
// browser is not new, but gets another id: another copy of its cookie must not share its attempts.
func (d *dashboard) rememberDevice(w http.ResponseWriter, r *http.Request, email string, forgotten bool) (isNew bool, err error) {
	since, err := d.Store.BrowsersSince(r.Context(), email)
	if err != nil {
		return false, err
	}
	account := accountKey(email)
	current, isNew := d.newDevice(account, since), true
	var others []device
	for _, of := range devicesOf(r) {
		if d.belongs(&of, account) {
			if known := of.signedIn() >= since.Unix(); known {
				current, isNew = d.signDevice(account, of, since), false
			} else if forgotten {
				isNew = false
			}
		} else {
			others = append(others, of)
		}
	}
	texts := []string{base64.RawURLEncoding.EncodeToString(current[:])}
	for _, of := range others[:min(len(others), maxDeviceAccounts-1)] {
		texts = append(texts, base64.RawURLEncoding.EncodeToString(of[:]))
	}
	http.SetCookie(w, &http.Cookie{
		Name: deviceCookie, Value: strings.Join(texts, "."), Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		MaxAge: int(deviceLife / time.Second),
	})
	return isNew, nil
}
