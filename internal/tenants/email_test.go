package tenants

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// One mailbox has one normal form, and no two mailboxes share one.
func TestNormalEmail(t *testing.T) {
	t.Parallel()
	for email, want := range map[string]string{
		"Ada@Example.COM":           "ada@example.com",
		"ada+test@example.com":      "ada+test@example.com",
		"ada@bücher.example":        "ada@xn--bcher-kva.example",
		"ada@xn--bcher-kva.eXaMple": "ada@xn--bcher-kva.example",
		"jürgen@example.com":        "jürgen@example.com",
	} {
		got, ok := normalEmail(email)
		require.True(t, ok, email)
		require.Equal(t, want, got)
		again, ok := normalEmail(got)
		require.True(t, ok && again == got, "the form of %q changes: %q", email, again)
	}
	for name, email := range map[string]string{
		"dotted capital I":      "ada@g\u0130thub.com",
		"Kelvin sign":           "ada@\u212Aernel.org",
		"Kelvin sign, mailbox":  "\u212Aelvin@example.com",
		"long s":                "\u017Fupport@example.com",
		"sharp s":               "stra\u00dfe@example.com",
		"capital outside ASCII": "J\u00dcRGEN@example.com",
		"full width":            "ada@\uff47ithub.com",
		"ideographic full stop": "ada@github\u3002com",
		"decomposed":            "ju\u0308rgen@example.com",
		"zero width":            "ada@git\u200bhub.com",
		"name and address":      "Ada <ada@example.com>",
		"underscore in domain":  "ada@exa_mple.com",
		"too long":              strings.Repeat("a", 250) + "@example.com",
	} {
		got, ok := normalEmail(email)
		require.False(t, ok, "%s became %q", name, got)
	}
}
