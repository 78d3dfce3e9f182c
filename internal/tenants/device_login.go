package tenants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// A program without a browser, such as the command weir, gets an API key in the steps of RFC 8628.
// It asks for two codes, shows one of them to its user, and polls with the other one. A member who
// is signed in enters the code that was shown, sees what is asked for, and approves it. The next
// poll creates the key in the member's name, and returns it. Nobody else sees its secret, and it is
// stored nowhere.

const (
	DeviceLoginLife = 10 * time.Minute    // how long a member can approve a sign-in
	DevicePollEvery = 5 * time.Second     // how often the program may poll
	DeviceKeyLife   = 90 * 24 * time.Hour // of the key

	deviceSlowDown = 5 * time.Second // is added to the time between polls for each poll that came too early
	maxDevicePoll  = time.Minute
)

// userCodeLetters are easy to distinguish, and form no words. A code has eight of them: one of
// 25 billion, for ten minutes.
const (
	userCodeLetters = "BCDFGHJKLMNPQRSTVWXZ"
	userCodeLength  = 8
)

// DeviceLogin is a sign-in that waits for a member.
type DeviceLogin struct {
	ID        uuid.UUID
	UserCode  string // such as BCDF-GHJK
	Machine   string // as the program says
	Address   string // from which it asked
	Scopes    []Scope
	CreatedAt time.Time
	ExpiresAt time.Time
}

// KeyName returns the name of the key that the sign-in creates.
func (l *DeviceLogin) KeyName() string { return "weir on " + l.Machine }

// NewDeviceLogin has what a program asks for.
type NewDeviceLogin struct {
	Machine string
	Address string
	Scopes  []Scope
}

// DeviceState is the answer to a poll.
type DeviceState string

// The answers.
const (
	DevicePending  DeviceState = "pending"
	DeviceSlowDown DeviceState = "slow_down" // pending, and polled too early: the interval is longer now
	DeviceApproved DeviceState = "approved"
	DeviceDenied   DeviceState = "denied"
	DeviceExpired  DeviceState = "expired" // or unknown, or collected already
)

// DevicePoll is the result of a poll.
type DevicePoll struct {
	State    DeviceState
	Interval time.Duration // until the next poll, if it is pending
	Key      APIKey        // if it is approved
	Secret   Key
	Tenant   Membership // in which the key was created
}

// newUserCode returns a random code.
func newUserCode() string {
	code := make([]byte, 0, userCodeLength+1)
	for random := make([]byte, 1); len(code) < userCodeLength+1; {
		if len(code) == userCodeLength/2 {
			code = append(code, '-')
		}
		_, _ = rand.Read(random) // never fails: the runtime aborts instead
		if fair := len(userCodeLetters) * (256 / len(userCodeLetters)); int(random[0]) >= fair {
			continue
		}
		code = append(code, userCodeLetters[int(random[0])%len(userCodeLetters)])
	}
	return string(code)
}

// NormalUserCode returns a code as it was shown. People may type it in lower case, and with other
// separators or none.
func NormalUserCode(typed string) (code string, ok bool) {
	var letters []byte
	for i := range len(typed) {
		switch c := typed[i] &^ 0x20; {
		case strings.IndexByte(userCodeLetters, c) >= 0:
			letters = append(letters, c)
		case strings.IndexByte("- _.", typed[i]) < 0:
			return "", false
		}
	}
	if len(letters) != userCodeLength {
		return "", false
	}
	return string(letters[:userCodeLength/2]) + "-" + string(letters[userCodeLength/2:]), true
}

func userCodeHash(code string) []byte {
	sum := sha256.Sum256([]byte(code))
	return sum[:]
}

// StartDeviceLogin stores a sign-in, and returns it with the secret code for polls. Errors:
// *InvalidError.
func (s *Store) StartDeviceLogin(ctx context.Context, n NewDeviceLogin) (out DeviceLogin, deviceCode string, err error) {
	var fields []limit.FieldError
	if n.Machine == "" {
		fields = append(fields, limit.FieldProblem("machine", limit.MustBe("1 to 100 characters")))
	}
	checkLine(&fields, "machine", n.Machine, 100)
	fields = append(fields, validateKey("", n.Scopes, nil, s.instant())...)
	if err := invalidIf(fields); err != nil {
		return DeviceLogin{}, "", err
	}
	deviceCode, hash := newToken()
	now := s.instant()
	out = DeviceLogin{
		ID: newID(), UserCode: newUserCode(), Machine: n.Machine, Address: n.Address, Scopes: newScopes(n.Scopes).List(),
		CreatedAt: now, ExpiresAt: now.Add(DeviceLoginLife),
	}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		// Expired ones must not keep their codes.
		if _, err := q.PurgeDeviceLogins(ctx, db.PurgeDeviceLoginsParams{Now: now, Most: purgeRows}); err != nil {
			return err
		}
		return q.InsertDeviceLogin(ctx, db.InsertDeviceLoginParams{
			ID: out.ID, DeviceHash: hash, UserHash: userCodeHash(out.UserCode), Machine: out.Machine, Address: out.Address,
			Scopes: newScopes(n.Scopes).texts(), IntervalS: int32(DevicePollEvery / time.Second), CreatedAt: now, ExpiresAt: out.ExpiresAt,
		})
	})
	if err != nil {
		return DeviceLogin{}, "", err
	}
	return out, deviceCode, nil
}

// DeviceLogin returns the sign-in of a code that a member has entered. Errors: ErrNotFound, also if
// it was approved or denied, or has expired.
func (s *Store) DeviceLogin(ctx context.Context, typed string) (out DeviceLogin, err error) {
	code, ok := NormalUserCode(typed)
	if !ok {
		return DeviceLogin{}, ErrNotFound
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.DeviceLoginByUser(ctx, db.DeviceLoginByUserParams{UserHash: userCodeHash(code), Now: s.instant()})
		out = deviceLoginOf(row)
		out.UserCode = code
		return err
	})
	return out, err
}

func deviceLoginOf(row db.DeviceLogin) DeviceLogin {
	return DeviceLogin{
		ID: row.ID, Machine: row.Machine, Address: row.Address, Scopes: newScopes(row.Scopes).List(),
		CreatedAt: row.CreatedAt, ExpiresAt: row.ExpiresAt,
	}
}

// ApproveDeviceLogin lets the program of a sign-in collect a key of the session's current tenant.
// The id is that of the sign-in that the member has seen. Errors: ErrNotFound, ErrForbidden,
// ErrNotPermitted.
func (s *Store) ApproveDeviceLogin(ctx context.Context, session Session, seen DeviceLogin) error {
	a := session.Actor()
	if !a.May(MayManage) {
		return ErrForbidden
	}
	if !a.mayGrant(newScopes(seen.Scopes), nil) {
		return ErrNotPermitted
	}
	return s.settleDeviceLogin(ctx, a, EventDeviceApproved, seen, func(ctx context.Context, q *db.Queries, user []byte, now time.Time) (int64, error) {
		return q.ApproveDeviceLogin(ctx, db.ApproveDeviceLoginParams{
			ChosenTenant: &session.Current.TenantID, PersonID: &session.PersonID, UserHash: user, ID: seen.ID, Now: now,
		})
	})
}

// DenyDeviceLogin ends a sign-in. Errors: ErrNotFound, ErrForbidden.
func (s *Store) DenyDeviceLogin(ctx context.Context, session Session, seen DeviceLogin) error {
	a := session.Actor()
	if !a.May(MayManage) {
		return ErrForbidden
	}
	return s.settleDeviceLogin(ctx, a, EventDeviceDenied, seen, func(ctx context.Context, q *db.Queries, user []byte, now time.Time) (int64, error) {
		return q.DenyDeviceLogin(ctx, db.DenyDeviceLoginParams{UserHash: user, ID: seen.ID, Now: now})
	})
}

func (s *Store) settleDeviceLogin(ctx context.Context, a Actor, kind EventKind, seen DeviceLogin,
	settle func(context.Context, *db.Queries, []byte, time.Time) (int64, error),
) error {
	return s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		now := s.instant()
		n, err := settle(ctx, q, userCodeHash(seen.UserCode), now)
		if err == nil && n == 0 {
			err = ErrNotFound
		}
		if err != nil {
			return err
		}
		details := map[string]any{"address": seen.Address, "scopes": newScopes(seen.Scopes).texts()}
		return appendEvents(ctx, q, a, a.tenant, now, []newEvent{{kind: kind, target: seen.Machine, details: details}})
	})
}

// PollDeviceLogin returns the state of a sign-in to its program. If it is approved, it creates the
// key, once: a program that does not receive the answer must start again. The member must still
// have the rights. Errors: ErrUnavailable.
func (s *Store) PollDeviceLogin(ctx context.Context, deviceCode string) (out DevicePoll, err error) {
	hash, ok := tokenHash(deviceCode)
	if !ok {
		return DevicePoll{State: DeviceExpired}, nil
	}
	var login DeviceLogin
	var member Session
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.LockDeviceLogin(ctx, db.LockDeviceLoginParams{DeviceHash: hash, Now: s.instant()})
		if err != nil {
			return err
		}
		login = deviceLoginOf(row)
		out, member, err = s.polled(ctx, q, row)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return DevicePoll{State: DeviceExpired}, nil
	}
	if err != nil || out.State != DeviceApproved {
		return out, err
	}
	expires := s.instant().Add(DeviceKeyLife)
	out.Tenant = *member.Current
	out.Key, out.Secret, err = s.CreateKey(ctx, member.Actor(), NewAPIKey{Name: login.KeyName(), Scopes: login.Scopes, ExpiresAt: &expires})
	if errors.Is(err, ErrForbidden) || errors.Is(err, ErrNotPermitted) {
		return DevicePoll{State: DeviceDenied}, nil
	}
	if err != nil {
		return DevicePoll{}, fmt.Errorf("create the key of a device: %w", err)
	}
	return out, nil
}

// polled decides about a poll. A sign-in that was settled is deleted, so it is answered once.
func (s *Store) polled(ctx context.Context, q *db.Queries, row db.DeviceLogin) (out DevicePoll, member Session, err error) {
	if row.State == "pending" {
		now, every := s.instant(), time.Duration(row.IntervalS)*time.Second
		out = DevicePoll{State: DevicePending, Interval: every}
		if row.PolledAt != nil && now.Sub(*row.PolledAt) < every {
			out = DevicePoll{State: DeviceSlowDown, Interval: min(every+deviceSlowDown, maxDevicePoll)}
		}
		return out, member, q.PollDeviceLogin(ctx, db.PollDeviceLoginParams{ID: row.ID, Now: &now, IntervalS: int32(out.Interval / time.Second)})
	}
	if err := q.DeleteDeviceLogin(ctx, row.ID); err != nil {
		return DevicePoll{}, member, err
	}
	out.State = DeviceDenied
	if row.State != "approved" {
		return out, member, nil
	}
	person, err := q.PersonByID(ctx, *row.PersonID)
	if err != nil {
		return DevicePoll{}, member, err
	}
	memberships, err := q.Memberships(ctx, person.ID)
	if err != nil {
		return DevicePoll{}, member, err
	}
	all := Session{PersonID: person.ID, Email: person.Email, Memberships: usableMemberships(membershipsOf(memberships))}
	member, joined := all.In(*row.ChosenTenant)
	if joined {
		out.State = DeviceApproved
	}
	return out, member, nil
}
