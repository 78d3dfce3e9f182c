package route

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"weir/internal/limit"
)

// kind is the kind of a source.
type kind uint8

const (
	fromHeader kind = iota
	fromCookie
	fromJWT
	fromAddress
	fromDescriptor
)

// source is where a route finds a value.
type source struct {
	kind   kind
	name   string // of the header in lower case, the cookie or the claim
	secret bool   // its values are, or may be, secrets
	slot   int    // slot of its header in a compiled route
	cookie int    // position of the cookie in a compiled route
}

var errSource = limit.MustBe("header:NAME, cookie:NAME, jwt:CLAIM, ip or descriptor")

// parseSource parses a source such as "header:X-User".
func parseSource(text string) (source, error) {
	if text == "ip" {
		return source{kind: fromAddress}, nil
	}
	if text == DescriptorSource {
		return source{kind: fromDescriptor}, nil
	}
	where, name, _ := strings.Cut(text, ":")
	switch where {
	case "header":
		if !validToken(name, "-_.") {
			return source{}, limit.Wrong("Use the name of a header, such as X-User.", "must name the header by 1 to 64 of A-Z, a-z, 0-9, - _ and .")
		}
		name = strings.ToLower(name)
		if name == "weir-key" {
			return source{}, limit.Wrong("Use another header.", "must not be the header Weir-Key, which holds the gateway's own key")
		}
		return source{kind: fromHeader, name: name, secret: isSecretHeader(name)}, nil
	case "cookie":
		if !validToken(name, "!#$%&'*+-.^_`|~") {
			return source{}, limit.Wrong("Use the name of a cookie, such as session.", "must name the cookie by 1 to 64 letters, digits and !#$%%&'*+-.^_`|~")
		}
		return source{kind: fromCookie, name: name, secret: true}, nil
	case "jwt":
		if name == "" || len(name) > maxClaimBytes || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			return source{}, limit.Wrong("Use the name of a claim, such as sub.", "must name the claim by 1 to %d bytes of UTF-8 without control characters", maxClaimBytes)
		}
		return source{kind: fromJWT, name: name}, nil
	}
	return source{}, errSource
}

func validToken(s, besides string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(besides, c) < 0 {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 64
}

// isSecretHeader reports whether a header, named in lower case, contains a credential.
func isSecretHeader(name string) bool {
	name = strings.NewReplacer("-", "", "_", "", ".", "").Replace(name)
	for _, part := range []string{"authorization", "apikey", "accesskey", "authkey", "token", "secret", "password", "credential", "session", "cookie"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// hashes reports whether the values of a source are hashed.
func (h Hash) hashes(s source) bool { return h == HashAll || h == HashSecrets && s.secret }

// Hashes reports whether a route hashes the values of a source, for display. It is false for an
// invalid source.
func (r *Route) Hashes(text string) bool {
	s, err := parseSource(text)
	return err == nil && r.Hash.hashes(s)
}
