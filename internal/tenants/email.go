package tenants

import (
	"net/mail"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// normalEmail returns the normal form of an address, which is stored, compared, shown and mailed
// to: the letters A to Z in lower case, and the domain in ASCII. It refuses an address with
// characters that compatibility or case folding would change. For example, the Kelvin sign folds to
// k, so the owner of one mailbox could be confused with the owner of another.
func normalEmail(email string) (string, bool) {
	if len(email) > maxEmail { // before parsing, whose cost grows faster than the length
		return "", false
	}
	address, err := mail.ParseAddress(email)
	if err != nil || address.Name != "" || address.Address != email || !plain(email) {
		return "", false
	}
	lower := strings.Map(lowerASCII, email)
	if norm.NFKC.String(lower) != lower || cases.Fold().String(lower) != lower {
		return "", false
	}
	at := strings.LastIndexByte(lower, '@')
	domain, err := idna.Registration.ToASCII(lower[at+1:])
	if err != nil || at+1+len(domain) > maxEmail {
		return "", false
	}
	return lower[:at+1] + domain, true
}

// CanonicalEmail returns the form in which all spellings of an address are equal. It returns a text
// that is no address in lower case.
func CanonicalEmail(text string) string {
	if email, ok := normalEmail(text); ok {
		return email
	}
	return strings.ToLower(text)
}

func lowerASCII(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}
