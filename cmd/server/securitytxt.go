package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	securityTextPath = "/.well-known/security.txt"
	// securityTextLife is how long a copy of the answer is valid; RFC 9116 wants less than a year.
	securityTextLife = 30 * 24 * time.Hour
)

// checkContact verifies a Contact field of RFC 9116.
func checkContact(text string) error {
	invalid := errors.New("must be an address such as mailto:security@example.com, tel:+1-201-555-0123 or https://example.com/security")
	const longest = 2048 // bytes
	u, err := url.Parse(text)
	if err != nil || len(text) > longest || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalid
	}
	switch {
	case u.Scheme == "https" && u.Host != "", u.Scheme == "tel" && u.Opaque != "", u.Scheme == "mailto" && strings.Contains(u.Opaque, "@"):
		return nil
	}
	return invalid
}

// securityText serves /.well-known/security.txt with this contact, and everything else with next.
// Without a contact, the path does not exist.
func securityText(contact, publicURL string, next http.Handler) http.Handler {
	if contact == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != securityTextPath || r.Method != http.MethodGet && r.Method != http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("Cache-Control", "max-age=86400")
		h.Set("X-Content-Type-Options", "nosniff")
		fmt.Fprintf(w, "Contact: %s\nExpires: %s\nPreferred-Languages: en\n", contact, time.Now().UTC().Add(securityTextLife).Format(time.RFC3339))
		if publicURL != "" {
			fmt.Fprintf(w, "Canonical: %s%s\n", strings.TrimSuffix(publicURL, "/"), securityTextPath)
		}
	})
}
