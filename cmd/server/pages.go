package main

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/dashboard"
)

// beside serves the dashboard and the API on the same listeners. Every path that is not a page
// belongs to the API, even an unknown one. A mistyped path in a browser is an exception: it gets a
// page with links, not a problem document.
func beside(api chi.Router, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dashboard.Serves(r.URL.Path) || mistyped(api, r) {
			pages.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// mistyped reports whether a browser requests a page that does not exist.
func mistyped(api chi.Routes, r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") &&
		!strings.HasPrefix(r.URL.Path, "/v1/") && !api.Match(chi.NewRouteContext(), r.Method, r.URL.Path)
}
