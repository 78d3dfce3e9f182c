package dashboard

import "testing"

func TestSentenceKeepsIdentifiers(t *testing.T) {
	for message, want := range map[string]string{
		"":                            "",
		"must be a number":            "Must be a number.",
		"in_1 was refunded":           "in_1 was refunded.",
		"expires_at must be later":    "expires_at must be later.",
		"the field rule_id is absent": "The field rule_id is absent.",
	} {
		if got := sentence(message); got != want {
			t.Errorf("sentence(%q) = %q, want %q", message, got, want)
		}
	}
}
