package weir

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// HashSubject returns a subject for a secret or a long value, such as an API key of your customer:
// "sha256:" and the hexadecimal SHA-256. For values that can be guessed, such as addresses, use
// HashSubjectWith. An empty value stays empty, so that a missing subject is still refused.
func HashSubject(value string) string {
	if value == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(value))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// HashSubjectWith is HashSubject with your own secret: "hmac-sha256:" and the hexadecimal
// HMAC-SHA-256.
func HashSubjectWith(secret, value string) string {
	if value == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(value))
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
}
