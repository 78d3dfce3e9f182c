package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// themeCookie stores the theme of this browser. It is not secret and grants nothing.
const themeCookie = "weir_theme"

type themeChoice struct{ Value, Name string }

var themes = []themeChoice{{"system", "Auto"}, {"light", "Light"}, {"dark", "Dark"}}

type themeKey struct{}

// withTheme stores the theme of the browser in the request's context, for rendering.
func withTheme(r *http.Request) *http.Request {
	cookie, err := r.Cookie(themeCookie)
	if err != nil || cookie.Value != "light" && cookie.Value != "dark" {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), themeKey{}, cookie.Value))
}

// themeOf returns "light", "dark", or "" for that of the system.
func themeOf(ctx context.Context) string { return themeOr(ctx, "") }

func themeOr(ctx context.Context, none string) string {
	if theme, ok := ctx.Value(themeKey{}).(string); ok {
		return theme
	}
	return none
}

// htmxConfig restricts htmx to the content policy (it adds no style and evaluates no text), and
// keeps pages out of the browser's storage, where they would outlive a session.
const htmxConfig = `{"historyCacheSize":0,"refreshOnHistoryMiss":true,"includeIndicatorStyles":false,"allowEval":false,"selfRequestsOnly":true,"scrollBehavior":"auto"}`

// chooseTheme stores the theme, and leads back to the page on which it was chosen.
func (d *dashboard) chooseTheme(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(w, r); err != nil {
		return err
	}
	cookie := &http.Cookie{
		Name: themeCookie, Value: r.PostForm.Get("theme"), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.TLS != nil, MaxAge: int(365 * 24 * time.Hour / time.Second),
	}
	switch cookie.Value {
	case "light", "dark":
	case "system":
		cookie.MaxAge = -1
	default:
		return errForm
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, backTo(r), http.StatusSeeOther)
	return nil
}

// backTo returns the page from which a form was sent, or "/" if it is unknown.
func backTo(r *http.Request) string {
	from, err := url.Parse(r.Referer())
	if err != nil || from.Host != r.Host {
		return "/"
	}
	return localPath(from.RequestURI())
}
