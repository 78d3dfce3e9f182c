package main

import (
	"net/http"

	"weir/internal/dashboard"
)

// beside puts the dashboard on the API's listeners. Every path that is not a page's is the
// API's, unknown ones too.
func beside(api, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dashboard.Serves(r.URL.Path) {
			pages.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}
