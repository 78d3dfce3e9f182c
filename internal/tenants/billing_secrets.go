package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/seal"
	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// BillingSecrets are changes of an endpoint's secrets. A nil field is unchanged.
type BillingSecrets struct {
	Signing    []string // replaces all
	AddSigning *string  // is added before the existing ones
	APIKey     *string  // "": none
}

// notSecret is the problem of a text that cannot be a secret.
var notSecret = limit.MustBe("8 to %d visible ASCII characters", maxSecretBytes)

func checkSigningSecrets(fields *[]limit.FieldError, provider string, secrets []string) {
	add := func(field string, p *limit.Problem) { *fields = append(*fields, limit.FieldProblem(field, p)) }
	if len(secrets) < 1 || len(secrets) > maxSigningSecrets {
		add("signing_secrets", limit.Wrong("Send a list of that length.", "must be 1 to %d secrets", maxSigningSecrets))
		return
	}
	for i, secret := range secrets {
		field := "signing_secrets." + strconv.Itoa(i)
		switch {
		case len(secret) < 8 || len(secret) > maxSecretBytes || strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
			add(field, notSecret)
		case provider == GenericProvider && subscription.CheckGenericSecret(secret) != nil:
			add(field, limit.Wrong("Use the secret as the sender of the events shows it.", "must be %d to %d bytes in base64, with or without whsec_ before it, as Standard Webhooks says", subscription.MinGenericSecret, subscription.MaxGenericSecret))
		case slices.Contains(secrets[:i], secret):
			add(field, limit.Duplicate)
		}
	}
}

func checkAPIKey(fields *[]limit.FieldError, provider, key string) {
	add := func(p *limit.Problem) { *fields = append(*fields, limit.FieldProblem("api_key", p)) }
	switch {
	case key == "":
	case provider != StripeProvider:
		add(limit.Wrong("Omit it.", "is only for the provider stripe"))
	case len(key) < 8 || len(key) > maxSecretBytes || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
		add(notSecret)
	case strings.HasPrefix(key, "pk_"), strings.HasPrefix(key, "whsec_"):
		add(limit.Wrong("Create such a key in the dashboard of Stripe.", "must be a restricted key (rk_...) with read access to subscriptions and customers"))
	}
}

func hint(secret string) string { return secret[len(secret)-4:] }

func hints(secrets []string) []string {
	out := make([]string, len(secrets))
	for i, secret := range secrets {
		out[i] = hint(secret)
	}
	return out
}

// liveOf returns the mode of an API key, or nil if it is unknown.
func liveOf(key string) *bool {
	for prefix, live := range map[string]bool{"rk_live_": true, "sk_live_": true, "rk_test_": false, "sk_test_": false} {
		if strings.HasPrefix(key, prefix) {
			return &live
		}
	}
	return nil
}

// CodeNoEncryptionKey is the code of a ConflictError: secrets cannot be stored.
const CodeNoEncryptionKey = "ENCRYPTION_KEY_MISSING"

func noEncryptionKey(err error) error {
	switch {
	case errors.Is(err, seal.ErrNoKey):
		return &ConflictError{CodeNoEncryptionKey, "this installation has no encryption key, so the secrets of an endpoint cannot be stored: the operator must set WEIR_ENCRYPTION_KEY"}
	case errors.Is(err, seal.ErrUnknownKey):
		return &ConflictError{CodeNoEncryptionKey, "the secrets of this endpoint were encrypted with a key that is no longer set: the operator must add it to WEIR_ENCRYPTION_KEY, or the secrets must be sent again"}
	}
	return err
}

func secretPlace(tenant, endpoint uuid.UUID, what string) string {
	return "billing endpoint " + tenant.String() + " " + endpoint.String() + " " + what
}

func (s *Store) sealSigning(tenant, endpoint uuid.UUID, secrets []string) ([]byte, error) {
	text, err := json.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	sealed, err := s.seal.Seal(text, secretPlace(tenant, endpoint, placeSigning))
	return sealed, noEncryptionKey(err)
}

func (s *Store) openSigning(tenant, endpoint uuid.UUID, sealed []byte) (secrets []string, err error) {
	text, err := s.seal.Open(sealed, secretPlace(tenant, endpoint, placeSigning))
	if err != nil {
		return nil, fmt.Errorf("decrypt the signing secrets of endpoint %s: %w", endpoint, err)
	}
	return secrets, json.Unmarshal(text, &secrets)
}

// CanSeal reports whether secrets can be stored.
func (s *Store) CanSeal() bool { return s.seal != nil }

func (s *Store) sealAPIKey(c *change, e *BillingEndpoint, key string) (err error) {
	e.apiKeySealed, e.APIKeyHint = nil, ""
	if key == "" {
		return nil
	}
	e.APIKeyHint = hint(key)
	e.apiKeySealed, err = s.seal.Seal([]byte(key), secretPlace(c.tenant, e.ID, placeAPIKey))
	return noEncryptionKey(err)
}

func (b BillingSecrets) none() bool {
	return b.Signing == nil && b.AddSigning == nil && b.APIKey == nil
}

// otherMode is the problem of an API key of another mode than the events of the endpoint: it would
// refuse all events that follow.
func otherMode(live bool) *limit.Problem {
	key, events := "test", "live"
	if live {
		key, events = events, key
	}
	return limit.Wrong("Send a key of "+events+" mode, or replace signing_secrets together with the key, to change the mode of the endpoint.",
		"is of %s mode, and the endpoint has events of %s mode", key, events)
}

// changeSecrets stores new secrets in the endpoint. With other secrets, its events may be of
// another mode.
func (s *Store) changeSecrets(c *change, e *BillingEndpoint, secrets BillingSecrets, fields *[]limit.FieldError) error {
	signing := secrets.Signing
	if signing == nil && secrets.AddSigning != nil {
		present, err := s.openSigning(c.tenant, e.ID, e.signingSealed)
		if err != nil {
			return noEncryptionKey(err)
		}
		signing = append([]string{*secrets.AddSigning}, present...)
	}
	if signing != nil {
		before := len(*fields)
		if checkSigningSecrets(fields, e.Provider, signing); len(*fields) > before {
			return nil
		}
		sealed, err := s.sealSigning(c.tenant, e.ID, signing)
		if err != nil {
			return err
		}
		e.signingSealed, e.SecretHints = sealed, hints(signing)
		if secrets.Signing != nil {
			e.Live = nil
		}
	}
	if secrets.APIKey == nil {
		return nil
	}
	before := len(*fields)
	if checkAPIKey(fields, e.Provider, *secrets.APIKey); len(*fields) > before {
		return nil
	}
	if live := liveOf(*secrets.APIKey); live != nil {
		if e.Live != nil && *e.Live != *live {
			*fields = append(*fields, limit.FieldProblem("api_key", otherMode(*live)))
			return nil
		}
		e.Live = live
	}
	return s.sealAPIKey(c, e, *secrets.APIKey)
}

// BillingAPIKey returns the API key of an endpoint, or "".
func (s *Store) BillingAPIKey(e BillingEndpoint, tenant uuid.UUID) (string, error) {
	if e.apiKeySealed == nil {
		return "", nil
	}
	key, err := s.seal.Open(e.apiKeySealed, secretPlace(tenant, e.ID, placeAPIKey))
	if err != nil {
		return "", fmt.Errorf("%w of endpoint %s: %w", ErrKeyUnreadable, e.ID, err)
	}
	return string(key), nil
}

// ErrKeyUnreadable: an API key was encrypted with a key that this installation has not.
var ErrKeyUnreadable = errors.New("cannot decrypt the API key")

// Reencrypt encrypts the secrets of all endpoints of the actor's tenant, for billing and for
// notifications, with the first key, and returns how many were encrypted with another key.
// Errors: ErrUnavailable, seal.ErrUnknownKey.
func (s *Store) Reencrypt(ctx context.Context, a Actor) (done int, err error) {
	if !a.May(MayManage) {
		return 0, ErrForbidden
	}
	err = s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		if _, err := q.LockTenant(ctx, a.tenant); err != nil {
			return err
		}
		rows, err := q.BillingEndpoints(ctx, db.BillingEndpointsParams{TenantID: a.tenant, Most: maxBillingEndpoints + 1})
		if err != nil {
			return err
		}
		for _, row := range rows {
			if s.seal.Current(row.SigningSecrets) && (row.ApiKey == nil || s.seal.Current(row.ApiKey)) {
				continue
			}
			p := db.ReencryptBillingEndpointParams{TenantID: a.tenant, ID: row.ID, Version: row.Version}
			for _, secret := range []struct {
				sealed []byte
				to     *[]byte
				what   string
			}{{row.SigningSecrets, &p.SigningSecrets, placeSigning}, {row.ApiKey, &p.ApiKey, placeAPIKey}} {
				if secret.sealed == nil {
					continue
				}
				place := secretPlace(a.tenant, row.ID, secret.what)
				text, err := s.seal.Open(secret.sealed, place)
				if err != nil {
					return fmt.Errorf("decrypt the %s of endpoint %s: %w", secret.what, row.ID, err)
				}
				if *secret.to, err = s.seal.Seal(text, place); err != nil {
					return err
				}
			}
			if err := q.ReencryptBillingEndpoint(ctx, p); err != nil {
				return err
			}
			done++
		}
		n, err := s.reencryptNotifications(ctx, q, a.tenant)
		done += n
		return err
	})
	return done, err
}
