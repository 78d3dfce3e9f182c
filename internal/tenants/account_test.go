package tenants_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func TestPasswords(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for _, bad := range []string{
		"", "short", "ninechars", "          ", "\t\n \t\n \t\n \t", "1234567890", "Password123", "QWERTYUIOP", "eeeeeeeeeeee", "eve.mallory@example.com",
		"Eve.Mallory", "with\x00a NUL inside", "bad \xff\xfe bytes", strings.Repeat("x1", 513),
	} {
		_, err := d.Store.CreateMember(t.Context(), a, "eve.mallory@example.com", bad, tenants.Owner)
		requireInvalid(t, err, "password")
	}
	// The end of a long password counts, because passwords are not truncated.
	long := strings.Repeat("ä", 511)
	_, err := d.Store.CreateMember(t.Context(), a, "eve@example.com", long+"1!", tenants.Owner)
	require.NoError(t, err)
	_, err = d.Store.VerifyPassword(t.Context(), "eve@example.com", long+"1?")
	require.ErrorIs(t, err, tenants.ErrWrongPassword)
	_, err = d.Store.VerifyPassword(t.Context(), "eve@example.com", long+"1!")
	require.NoError(t, err)
}

// A password link is single-use, valid for an hour, and ends all sessions of the old password.
func TestPasswordLink(t *testing.T) {
	t.Parallel()
	d, a, _, now, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	session, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	person, err := s.PersonWithLogin(ctx, "ANN@example.com")
	require.NoError(t, err)
	require.Equal(t, ann.ID, person.ID)
	_, err = s.InviteMember(ctx, a, "invited@example.com", tenants.Viewer)
	require.NoError(t, err)
	for _, unknown := range []string{"nobody@example.com", "not an address", "invited@example.com", ""} {
		_, err = s.PersonWithLogin(ctx, unknown)
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}
	first, err := s.NewPasswordLink(ctx, person)
	require.NoError(t, err)
	second, err := s.NewPasswordLink(ctx, person)
	require.NoError(t, err)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var leaked bool
		require.NoError(t, conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM account_links l WHERE l::text LIKE '%' || $1 || '%')", first).Scan(&leaked))
		require.False(t, leaked)
	})
	email, err := s.PasswordLink(ctx, first)
	require.NoError(t, err)
	require.Equal(t, "ann@example.com", email)
	_, err = s.SignupLink(ctx, first)
	require.ErrorIs(t, err, tenants.ErrNotFound, "it is only for a password")
	_, err = s.UsePasswordLink(ctx, first, "short")
	requireInvalid(t, err, "password")
	_, err = s.Session(ctx, session)
	require.NoError(t, err, "nothing has changed yet")

	errs := make([]error, 3)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = s.UsePasswordLink(ctx, first, "a better horse") })
	}
	wg.Wait()
	used := 0
	for _, err := range errs {
		if err == nil {
			used++
		} else {
			require.ErrorIs(t, err, tenants.ErrNotFound)
		}
	}
	require.Equal(t, 1, used)
	_, err = s.Session(ctx, session)
	require.ErrorIs(t, err, tenants.ErrNoSession, "sessions of the old password have ended")
	_, err = s.VerifyPassword(ctx, "ann@example.com", "correct horse")
	require.ErrorIs(t, err, tenants.ErrWrongPassword)
	_, err = s.VerifyPassword(ctx, "ann@example.com", "a better horse")
	require.NoError(t, err)
	_, err = s.PasswordLink(ctx, second)
	require.ErrorIs(t, err, tenants.ErrNotFound, "a new password ends all links")

	third, err := s.NewPasswordLink(ctx, person)
	require.NoError(t, err)
	*now = now.Add(tenants.PasswordLinkLife)
	_, err = s.UsePasswordLink(ctx, third, "yet another horse")
	require.ErrorIs(t, err, tenants.ErrNotFound, "too old")
	require.NoError(t, s.Purge(ctx))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var left int
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM account_links").Scan(&left))
		require.Zero(t, left)
	})
}

func TestChangePassword(t *testing.T) {
	t.Parallel()
	d, _, _, _, ann := sessionStack(t)
	s, ctx := d.Store, t.Context()
	session, err := s.StartSession(ctx, ann, "", "")
	require.NoError(t, err)
	link, err := s.NewPasswordLink(ctx, ann)
	require.NoError(t, err)
	requireInvalid(t, s.ChangePassword(ctx, &ann, "password123"), "password")
	require.NoError(t, s.ChangePassword(ctx, &ann, "a better horse"))
	_, err = s.Session(ctx, session)
	require.ErrorIs(t, err, tenants.ErrNoSession)
	_, err = s.PasswordLink(ctx, link)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.VerifyPassword(ctx, "ann@example.com", "a better horse")
	require.NoError(t, err)
}

// While passwords are hashed one after the other, a request that waits too long gets an error.
func TestHashingIsBounded(t *testing.T) {
	t.Parallel()
	d, _, _, _, ann := sessionStack(t)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	require.Error(t, d.Store.ChangePassword(ctx, &ann, "a better horse"))
	require.True(t, tenants.IsBusy(context.DeadlineExceeded))
	require.False(t, tenants.IsBusy(tenants.ErrUnavailable))
}

// A person who signs up gets a new tenant, and no access to others.
func TestSignUp(t *testing.T) {
	t.Parallel()
	d, a, _, now, _ := sessionStack(t)
	_, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	s, ctx := d.Open(tenants.Config{DatabaseURL: loginURL(t, d), Now: func() time.Time { return *now }}), t.Context()
	_, err = s.NewSignupLink(ctx, "ann@example.com", tenants.SignupLinkLife)
	requireConflict(t, err, tenants.CodeMemberExists)
	_, err = s.NewSignupLink(ctx, "not an address", tenants.SignupLinkLife)
	requireInvalid(t, err, "email")
	invited, err := s.InviteMember(ctx, a, "zoe@example.com", tenants.Viewer)
	require.NoError(t, err)
	token, err := s.NewSignupLink(ctx, "Zoe@example.com", tenants.SignupLinkLife)
	require.NoError(t, err)
	second, err := s.NewSignupLink(ctx, "zoe@example.com", tenants.SignupLinkLife)
	require.NoError(t, err)
	email, err := s.SignupLink(ctx, token)
	require.NoError(t, err)
	require.Equal(t, "zoe@example.com", email)
	_, err = s.PasswordLink(ctx, token)
	require.ErrorIs(t, err, tenants.ErrNotFound)

	_, err = s.SignUp(ctx, token, tenants.NewSignup{Tenant: " ", Password: "short"})
	requireInvalid(t, err, "tenant", "password")
	person, err := s.SignUp(ctx, token, tenants.NewSignup{Tenant: " Tenant A & Söhne ", Password: "zoe's own horse"})
	require.NoError(t, err)
	require.Len(t, person.Memberships, 2)
	own := person.Memberships[1]
	require.Equal(t, "tenant-a-s-hne", own.Slug)
	require.Equal(t, "Tenant A & Söhne", own.Name)
	require.Equal(t, tenants.Owner, own.Role)
	require.Equal(t, tenants.MemberActive, own.State)
	require.Equal(t, tenants.MemberInvited, person.Memberships[0].State, "a sign-up accepts no invitation")
	_, err = s.VerifyPassword(ctx, "zoe@example.com", "zoe's own horse")
	require.NoError(t, err)
	for _, gone := range []string{token, second, "x"} {
		_, err = s.SignUp(ctx, gone, tenants.NewSignup{Tenant: "More", Password: "zoe's own horse"})
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}
	read, err := s.InvitationByToken(ctx, invited.Token)
	require.NoError(t, err)
	require.True(t, read.HasLogin)

	trail, _, err := s.Audit(ctx, tenants.AsSystem(own.TenantID, "test"), tenants.AuditFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, trail, 2, "the tenant, and its owner")
	for _, row := range trail {
		require.Equal(t, "zoe@example.com", row.ActorName)
		require.Equal(t, "member", row.ActorKind)
	}
	verified, err := s.VerifyAudit(ctx, tenants.AsSystem(own.TenantID, "test"), tenants.AuditVerification{})
	require.NoError(t, err)
	require.EqualValues(t, 2, verified.Head.Sequence)

	other, err := s.NewSignupLink(ctx, "new@example.com", tenants.SignupLinkLife)
	require.NoError(t, err)
	*now = now.Add(tenants.SignupLinkLife)
	_, err = s.SignUp(ctx, other, tenants.NewSignup{Tenant: "Late", Password: "a late horse"})
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

func TestSlugsOfSignUps(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	s, ctx := d.Store, t.Context()
	for i, c := range []struct{ name, want string }{
		{"Tenant A", `^tenant-a-[a-z0-9]{6}$`}, {"Platform", `^platform-[a-z0-9]{6}$`}, {"日本", `^tenant$`}, {"--- x ---", `^x$`},
		{strings.Repeat("long ", 40), `^[a-z-]{38,42}$`},
	} {
		email := string(rune('a'+i)) + "@example.com"
		person, err := s.SignUpUnproved(ctx, email, tenants.NewSignup{Tenant: c.name, Password: "correct horse"})
		require.NoError(t, err)
		require.Regexp(t, c.want, person.Memberships[0].Slug)
		_, err = s.SignUpUnproved(ctx, email, tenants.NewSignup{Tenant: "again", Password: "taken over!"})
		requireConflict(t, err, tenants.CodeMemberExists)
	}
	_, err := s.VerifyPassword(ctx, "a@example.com", "correct horse")
	require.NoError(t, err, "a sign-up by another person cannot replace a password")
}

// A person who entered the old password before a reset can do nothing with it afterwards.
func TestResetEndsWhatTheOldPasswordBegan(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	const old, set = "a long password of ann", "another password of ann"
	_, err := s.CreateMember(ctx, a, "ann@example.com", old, tenants.Admin)
	require.NoError(t, err)
	thief, err := s.VerifyPassword(ctx, "ann@example.com", old)
	require.NoError(t, err)
	open, err := s.StartSession(ctx, thief, "192.0.2.1", "test")
	require.NoError(t, err)
	session, err := s.Session(ctx, open)
	require.NoError(t, err)
	token, err := s.NewPasswordLink(ctx, thief)
	require.NoError(t, err)
	ann, err := s.UsePasswordLink(ctx, token, set)
	require.NoError(t, err)

	_, err = s.StartSession(ctx, thief, "192.0.2.1", "test")
	require.ErrorIs(t, err, tenants.ErrWrongPassword)
	require.ErrorIs(t, s.Confirm(ctx, session), tenants.ErrNoSession)
	require.ErrorIs(t, s.ChangePassword(ctx, &thief, "a password of the thief"), tenants.ErrWrongPassword)
	_, _, err = s.NewEmailLink(ctx, thief, "thief@example.com")
	require.ErrorIs(t, err, tenants.ErrWrongPassword)
	b, _ := d.Tenant("tenant-c")
	made, err := s.InviteMember(ctx, b, "ann@example.com", tenants.Viewer)
	require.NoError(t, err)
	joined, err := s.Join(ctx, made.Token, thief)
	require.NoError(t, err)
	_, err = s.StartSession(ctx, joined, "192.0.2.1", "test")
	require.ErrorIs(t, err, tenants.ErrWrongPassword)
	_, err = s.StartSession(ctx, ann, "192.0.2.1", "test")
	require.NoError(t, err, "who followed the link")
	ann, err = s.VerifyPassword(ctx, "ann@example.com", set)
	require.NoError(t, err)
	require.NoError(t, s.ChangePassword(ctx, &ann, "a third password of ann"))
	_, err = s.StartSession(ctx, ann, "192.0.2.1", "test")
	require.NoError(t, err, "who changed it")
}
