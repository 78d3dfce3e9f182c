package dashboard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"
	"time"
)

// deviceCookie names the browser for the accounts that have signed in with it. It proves only that:
// it signs nobody in, and stays when the session ends. Its failed sign-ins have a limit of their
// own, so unknown clients who guess passwords cannot lock the owner of the account out of it.
const deviceCookie = "__Host-weir-device"

const (
	deviceLife = 365 * 24 * time.Hour
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

func (d *dashboard) newDevice(account string) (out device) {
	_, _ = rand.Read(out[:deviceID]) // never fails: the runtime aborts instead
	return d.signDevice(account, out)
}

// signDevice returns the device with the current time and its MAC.
func (d *dashboard) signDevice(account string, out device) device {
	binary.BigEndian.PutUint64(out[deviceID:], uint64(max(0, d.Now().Unix())))
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
	since := d.Now().Unix() - int64(binary.BigEndian.Uint64(of[deviceID:])) // a forged time fails the MAC
	return hmac.Equal(of[deviceID+8:], d.deviceMAC(account, of)) && since < int64(deviceLife/time.Second)
}

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

// deviceFor returns the id of the browser if it has signed in to this account before.
func (d *dashboard) deviceFor(r *http.Request, account string) (id string, known bool) {
	for _, of := range devicesOf(r) {
		if d.belongs(&of, account) {
			return string(of[:deviceID]), true
		}
	}
	return "", false
}

// rememberDevice sets the cookie after a sign-in, and reports whether the browser is new to the
// account. A known browser keeps its id.
func (d *dashboard) rememberDevice(w http.ResponseWriter, r *http.Request, account string) (isNew bool) {
	current, isNew := d.newDevice(account), true
	var others []device
	for _, of := range devicesOf(r) {
		if d.belongs(&of, account) {
			current, isNew = d.signDevice(account, of), false
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
	return isNew
}
