package main

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/dashboard"
)

// beside puts the dashboard on the API's listeners. Every path that is not a page's is the
// API's, unknown ones too, except those that somebody typed wrong into a browser: they get a page
// that leads on, not a problem document.
func beside(api chi.Router, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dashboard.Serves(r.URL.Path) || mistyped(api, r) {
			pages.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// mistyped reports whether a browser asks for a page that nobody serves.
func mistyped(api chi.Routes, r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") &&
		!strings.HasPrefix(r.URL.Path, "/v1/") && !api.Match(chi.NewRouteContext(), r.Method, r.URL.Path)
}
