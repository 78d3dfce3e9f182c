package tenants

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// NotificationEndpoint is an address of a tenant that gets notifications. Its secrets sign them and
// are never returned again.
type NotificationEndpoint struct {
	ID            uuid.UUID
	URL           string // may contain a secret: see MaskedURL
	Description   string
	Types         []string // which it gets; none: all
	Enabled       bool
	DisabledWhy   string // if the server disabled it
	SecretHint    string // the last four characters
	PreviousUntil *time.Time
	Dropped       int64 // notifications beyond the number for an hour
	DroppedAt     *time.Time
	CreatedAt     time.Time
	UpdatedAt     time.Time
	Version       int64
	sealed        []byte
}

const (
	maxNotificationEndpoints = 10
	maxURLBytes              = 2048
	signingSecretBytes       = 24
	signingSecretPrefix      = "whsec_" // of Standard Webhooks
	// MaxSecretOverlap is how long the previous secret can sign after a rotation.
	MaxSecretOverlap = 30 * 24 * time.Hour
)

func (e *NotificationEndpoint) validate() (fields []limit.FieldError) {
	add := func(field string, p *limit.Problem) { fields = append(fields, limit.FieldProblem(field, p)) }
	if problem := notificationURL(e.URL); problem != nil {
		add("url", problem)
	}
	checkText(&fields, "description", e.Description, 200)
	for i, kind := range e.Types {
		field := fmt.Sprintf("types.%d", i)
		switch {
		case !slices.ContainsFunc(NotificationTypes, func(t NotificationType) bool { return t.Type == kind }):
			add(field, limit.MustBe("a type of notification, such as %s", QuotaReached))
		case slices.Contains(e.Types[:i], kind):
			add(field, limit.Duplicate)
		}
	}
	return fields
}

// notificationURL returns the problem of an address. Which hosts can be reached is decided when a
// notification is sent, because a name can get another address at any time.
func notificationURL(text string) *limit.Problem {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxURLBytes || u.Host == "" || u.Hostname() == "" || u.Opaque != "" ||
		strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return limit.MustBe("an address such as https://example.com/weir of up to %d ASCII characters", maxURLBytes)
	case u.User != nil:
		return limit.Wrong("Put a secret into the path or the query, or rely on the signature.", "must not contain a user or a password")
	case u.Fragment != "":
		return limit.Wrong("Remove the part after #.", "must not contain a fragment")
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()): // which only some operators allow
	default:
		return limit.Wrong("Use an address that begins with https://.", "must use https")
	}
	return nil
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}

func newSigningSecret() string {
	raw := make([]byte, signingSecretBytes)
	_, _ = rand.Read(raw) // does not fail
	return signingSecretPrefix + base64.StdEncoding.EncodeToString(raw)
}

func notificationPlace(tenant, endpoint uuid.UUID) string {
	return "notification endpoint " + tenant.String() + " " + endpoint.String() + " secrets"
}

func (s *Store) sealNotificationSecrets(tenant uuid.UUID, e *NotificationEndpoint, secrets []string) error {
	text, err := json.Marshal(secrets)
	if err != nil {
		return err
	}
	e.SecretHint = hint(secrets[0])
	e.sealed, err = s.seal.Seal(text, notificationPlace(tenant, e.ID))
	return noEncryptionKey(err)
}

func (s *Store) openNotificationSecrets(tenant, endpoint uuid.UUID, sealed []byte) (secrets []string, err error) {
	text, err := s.seal.Open(sealed, notificationPlace(tenant, endpoint))
	if err != nil {
		return nil, fmt.Errorf("decrypt the secrets of notification endpoint %s: %w", endpoint, err)
	}
	return secrets, json.Unmarshal(text, &secrets)
}

// CreateNotificationEndpoint creates an endpoint and returns its signing secret. Errors:
// *InvalidError, *ConflictError with CodeNoEncryptionKey, ErrNotPermitted.
func (s *Store) CreateNotificationEndpoint(ctx context.Context, a Actor, in NotificationEndpoint) (out NotificationEndpoint, secret string, err error) {
	if err := invalidIf(in.validate()); err != nil {
		return NotificationEndpoint{}, "", err
	}
	in.ID, secret = newID(), newSigningSecret()
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		if !c.actor.mayNotify() {
			return ErrNotPermitted
		}
		count, err := c.CountNotificationEndpoints(ctx, c.tenant)
		if err != nil {
			return err
		}
		if count >= maxNotificationEndpoints {
			return invalid("url", limit.Wrong("Delete an endpoint that is no longer needed.", "would be one endpoint too many: a tenant may have %d", maxNotificationEndpoints))
		}
		if err := s.sealNotificationSecrets(c.tenant, &in, []string{secret}); err != nil {
			return err
		}
		version, err := c.next(ctx, parts{itself: true})
		if err != nil {
			return err
		}
		row, err := c.InsertNotificationEndpoint(ctx, db.InsertNotificationEndpointParams{
			TenantID: c.tenant, ID: in.ID, Url: in.URL, Description: in.Description, Types: append([]string{}, in.Types...), Enabled: in.Enabled,
			Secrets: in.sealed, SecretHint: in.SecretHint, CreatedAt: c.now, Version: version,
		})
		out = notificationEndpointOf(row)
		return err
	})
	if err != nil {
		return NotificationEndpoint{}, "", err
	}
	return out, secret, nil
}

func notificationEndpointOf(row db.NotificationEndpoint) NotificationEndpoint {
	return NotificationEndpoint{
		ID: row.ID, URL: row.Url, Description: row.Description, Types: row.Types, Enabled: row.Enabled, DisabledWhy: row.DisabledWhy,
		SecretHint: row.SecretHint, PreviousUntil: row.PreviousUntil, Dropped: row.Dropped, DroppedAt: row.DroppedAt,
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Version: row.Version, sealed: row.Secrets,
	}
}

// EditNotificationEndpoint calls edit to change an endpoint, and returns it with its address as the
// actor may see it. An error of edit is returned unchanged and nothing changes. Errors:
// ErrNotFound, ErrPreconditionFailed, *InvalidError, ErrNotPermitted.
func (s *Store) EditNotificationEndpoint(ctx context.Context, a Actor, id uuid.UUID, m Match, edit func(*NotificationEndpoint) error) (out NotificationEndpoint, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := c.notificationEndpoint(ctx, id, m)
		if err != nil {
			return err
		}
		in := old
		in.Types = slices.Clone(old.Types)
		if err := edit(&in); err != nil {
			return err
		}
		if err := invalidIf(in.validate()); err != nil {
			return err
		}
		if in.tellsMore(old) && !c.actor.mayNotify() {
			return ErrNotPermitted
		}
		if in.Enabled {
			in.DisabledWhy = ""
		}
		if in.URL == old.URL && in.Description == old.Description && in.Enabled == old.Enabled && in.DisabledWhy == old.DisabledWhy && slices.Equal(in.Types, old.Types) {
			out = old
			return nil
		}
		out, err = c.writeNotificationEndpoint(ctx, &in)
		return err
	})
	out.URL = a.shownURL(out.URL)
	return out, err
}

// tellsMore reports whether a changed endpoint gets what it did not get before.
func (e *NotificationEndpoint) tellsMore(old NotificationEndpoint) bool {
	return e.URL != old.URL || !slices.Equal(e.Types, old.Types) || e.Enabled && !old.Enabled
}

func (c *change) notificationEndpoint(ctx context.Context, id uuid.UUID, m Match) (NotificationEndpoint, error) {
	row, err := c.NotificationEndpointByID(ctx, db.NotificationEndpointByIDParams{TenantID: c.tenant, ID: id})
	if err != nil {
		return NotificationEndpoint{}, err
	}
	return notificationEndpointOf(row), m.check(row.Version)
}

func (c *change) writeNotificationEndpoint(ctx context.Context, in *NotificationEndpoint) (NotificationEndpoint, error) {
	version, err := c.next(ctx, parts{itself: true})
	if err != nil {
		return NotificationEndpoint{}, err
	}
	row, err := c.UpdateNotificationEndpoint(ctx, db.UpdateNotificationEndpointParams{
		TenantID: c.tenant, ID: in.ID, Url: in.URL, Description: in.Description, Types: append([]string{}, in.Types...), Enabled: in.Enabled,
		DisabledWhy: in.DisabledWhy, Secrets: in.sealed, SecretHint: in.SecretHint, PreviousUntil: in.PreviousUntil, UpdatedAt: c.now, Version: version,
	})
	return notificationEndpointOf(row), err
}

// RotateNotificationSecret gives an endpoint a new signing secret and returns it. The previous one
// signs, too, for the time of overlap. Errors: ErrNotFound, *InvalidError, *ConflictError with
// CodeNoEncryptionKey, ErrNotPermitted.
func (s *Store) RotateNotificationSecret(ctx context.Context, a Actor, id uuid.UUID, overlap time.Duration) (out NotificationEndpoint, secret string, err error) {
	if overlap < 0 || overlap > MaxSecretOverlap {
		return NotificationEndpoint{}, "", invalid("overlap", limit.MustBe("a duration from 0s to 30d"))
	}
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		e, err := c.notificationEndpoint(ctx, id, Match{})
		if err != nil {
			return err
		}
		if !c.actor.mayNotify() {
			return ErrNotPermitted
		}
		secret, e.PreviousUntil = newSigningSecret(), nil
		secrets := []string{secret}
		if overlap > 0 {
			present, err := s.openNotificationSecrets(c.tenant, id, e.sealed)
			if err != nil {
				return noEncryptionKey(err)
			}
			until := c.now.Add(overlap)
			secrets, e.PreviousUntil = append(secrets, present[0]), &until
		}
		if err := s.sealNotificationSecrets(c.tenant, &e, secrets); err != nil {
			return err
		}
		t, err := c.touch(ctx, auditNotified, id.String(), false)
		if err != nil {
			return err
		}
		t.action = "rotate"
		out, err = c.writeNotificationEndpoint(ctx, &e)
		return err
	})
	if err != nil {
		return NotificationEndpoint{}, "", err
	}
	return out, secret, nil
}

// DeleteNotificationEndpoint deletes an endpoint with its deliveries. Errors: ErrNotFound,
// ErrPreconditionFailed.
func (s *Store) DeleteNotificationEndpoint(ctx context.Context, a Actor, id uuid.UUID, m Match) error {
	return s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		if _, err := c.notificationEndpoint(ctx, id, m); err != nil {
			return err
		}
		if _, err := c.nextAtEnd(ctx, parts{itself: true}); err != nil {
			return err
		}
		return c.DeleteNotificationEndpoint(ctx, db.DeleteNotificationEndpointParams{TenantID: c.tenant, ID: id})
	})
}

// NotificationEndpoints lists endpoints, newest first, and returns where the next page begins.
// Addresses are masked for actors that may not set them.
func (s *Store) NotificationEndpoints(ctx context.Context, a Actor, p Page) (out []NotificationEndpoint, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.NotificationEndpoints(ctx, db.NotificationEndpointsParams{TenantID: a.tenant, After: after, Most: p.most()})
		rows, next = cut(p, rows, func(r db.NotificationEndpoint) uuid.UUID { return r.ID })
		out = make([]NotificationEndpoint, len(rows))
		for i, row := range rows {
			out[i] = notificationEndpointOf(row)
			out[i].URL = a.shownURL(row.Url)
		}
		return err
	})
	return out, next, err
}

// NotificationEndpoint returns an endpoint, or ErrNotFound. Its address is masked for actors that
// may not set it.
func (s *Store) NotificationEndpoint(ctx context.Context, a Actor, id uuid.UUID) (out NotificationEndpoint, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.NotificationEndpointByID(ctx, db.NotificationEndpointByIDParams{TenantID: a.tenant, ID: id})
		out = notificationEndpointOf(row)
		out.URL = a.shownURL(row.Url)
		return err
	})
	return out, err
}

// reencryptNotifications encrypts the secrets of a tenant's notification endpoints with the first
// key, and returns how many were encrypted with another one.
func (s *Store) reencryptNotifications(ctx context.Context, q *db.Queries, tenant uuid.UUID) (done int, err error) {
	rows, err := q.NotificationEndpoints(ctx, db.NotificationEndpointsParams{TenantID: tenant, Most: maxNotificationEndpoints + 1})
	if err != nil {
		return 0, err
	}
	for _, row := range rows {
		if s.seal.Current(row.Secrets) {
			continue
		}
		secrets, err := s.openNotificationSecrets(tenant, row.ID, row.Secrets)
		if err != nil {
			return done, err
		}
		e := notificationEndpointOf(row)
		if err := s.sealNotificationSecrets(tenant, &e, secrets); err != nil {
			return done, err
		}
		if err := q.ReencryptNotificationEndpoint(ctx, db.ReencryptNotificationEndpointParams{TenantID: tenant, ID: row.ID, Secrets: e.sealed, Version: row.Version}); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// MaskedURL returns an address with its scheme and host only. The rest often is a secret, as with
// chat services.
func MaskedURL(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return maskedRest
	}
	shown := u.Scheme + "://" + u.Host
	if address == shown || address == shown+"/" {
		return address
	}
	return shown + "/" + maskedRest
}

const maskedRest = "***"

// shownURL returns an address as the actor may see it: whole only if the actor may set it. The
// secret in it works without end and from every address.
func (a Actor) shownURL(address string) string {
	if a.May(MayManage) && a.mayNotify() {
		return address
	}
	return MaskedURL(address)
}

// NotificationHost returns the host of an address without the rest, which may have a secret.
func NotificationHost(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	if host, port, err := net.SplitHostPort(u.Host); err == nil && port == "443" {
		return host
	}
	return u.Host
}
