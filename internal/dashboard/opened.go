package dashboard

import (
	"context"
	"net/http"
	"strings"
)

// An address can open an action of its page: "?open=delete-rule" opens the form behind the button
// "Delete rule". The palette uses it.

type openKey struct{}

// withOpen stores which action the address opens in the request's context, for rendering.
func withOpen(r *http.Request) *http.Request {
	if r.Method != http.MethodGet {
		return r
	}
	open := r.URL.Query().Get("open")
	if open == "" {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), openKey{}, open))
}

// opens reports whether the address opens this action, by its name in addresses.
func opens(ctx context.Context, name string) bool {
	open, _ := ctx.Value(openKey{}).(string)
	return open != "" && open == name
}

// actionName returns the name of a button in addresses: "Delete rule" is "delete-rule".
func actionName(button string) string { return strings.ReplaceAll(strings.ToLower(button), " ", "-") }
