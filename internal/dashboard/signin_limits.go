package dashboard

import (
	"context"
	"net/http"
	"slices"
	"time"

	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/tenants"
	"weir/internal/throttle"
)

// The limits for failed sign-ins have three groups. A browser that has signed in to the account
// before has its own counters, and so has an address from which the person signed in. Everybody
// else is an unknown client. Unknown clients share the counter of the account, so nobody can guess
// its password from many addresses, and they cannot use up the attempts of the two other groups.
var (
	unknownRules = throttle.ByNetwork(
		limit.Rule{Slug: "account-address", Algorithm: limit.FixedWindowFirstHit, Limit: 10, Window: throttle.Every(15 * time.Minute)},
		limit.Rule{Slug: "address", Algorithm: limit.SlidingWindowCounter, Limit: 50, Window: throttle.Every(time.Hour)},
		limit.Rule{Slug: "account", Algorithm: limit.TokenBucket, Limit: 100, Window: throttle.Every(24 * time.Hour)},
	)
	// For a browser or an address of the account.
	ownRules = []limit.Rule{
		{Slug: "own", Algorithm: limit.FixedWindowFirstHit, Limit: 10, Window: throttle.Every(15 * time.Minute)},
		{Slug: "own-day", Algorithm: limit.TokenBucket, Limit: 100, Window: throttle.Every(24 * time.Hour)},
	}
)

// provedRules limit how often a person proves to be one, with the right password: each time is an
// event in all of their tenants. Nobody else can use this up.
var provedRules = []limit.Rule{{Slug: "proved", Algorithm: limit.TokenBucket, Limit: 300, Window: throttle.Every(24 * time.Hour)}}

// newPasswordRules limit how often a person changes the password, because a mail reports it.
var newPasswordRules = []limit.Rule{{Slug: "password", Algorithm: limit.TokenBucket, Limit: 20, Window: throttle.Every(24 * time.Hour)}}

// askRules limit the sign-ups that create a login without a mail.
var askRules = throttle.ByNetwork(
	limit.Rule{Slug: "account-address", Algorithm: limit.FixedWindowFirstHit, Limit: 3, Window: throttle.Every(15 * time.Minute)},
	limit.Rule{Slug: "address", Algorithm: limit.SlidingWindowCounter, Limit: 20, Window: throttle.Every(time.Hour)},
	limit.Rule{Slug: "account", Algorithm: limit.TokenBucket, Limit: 10, Window: throttle.Every(24 * time.Hour)},
)

// askAddressRules limit how many mails the networks of a client can request, for all accounts
// together.
var askAddressRules = throttle.Networks(
	limit.Rule{Slug: "address", Algorithm: limit.SlidingWindowCounter, Limit: 20, Window: throttle.Every(time.Hour)},
)

// One mail is sent in each period, for all requests. The link in it is valid for as long, so a
// person whose request is not mailed already has a valid link. A browser or address of the account
// has its own, shorter period: the person may have used the link that an unknown client requested.
var (
	mailRules    = []limit.Rule{{Slug: "account", Algorithm: limit.FixedWindowFirstHit, Limit: 1, Window: throttle.Every(tenants.PasswordLinkLife)}}
	ownMailRules = []limit.Rule{{Slug: "own", Algorithm: limit.FixedWindowFirstHit, Limit: 1, Window: throttle.Every(5 * time.Minute)}}
)

// emailRules limit the links that are mailed to a new address, by that address and by the person
// who asks: otherwise a person with many addresses of clients could write to any number of people.
var emailRules = []limit.Rule{
	{Slug: "account", Algorithm: limit.FixedWindowFirstHit, Limit: 3, Window: throttle.Every(tenants.EmailLinkLife)},
	{Slug: "person", Algorithm: limit.TokenBucket, Limit: 10, Window: throttle.Every(24 * time.Hour)},
}

// blockedRules limit how often it is recorded that an address is blocked for an account, and how
// often for any account, and for an account from any address: each record is work for Postgres, in
// all tenants of the person. A blocked client can invent accounts, and have very many addresses.
var blockedRules = slices.Concat(
	[]limit.Rule{{Slug: "blocked", Algorithm: limit.FixedWindowFirstHit, Limit: 1, Window: throttle.Every(15 * time.Minute)}},
	throttle.Networks(limit.Rule{Slug: "blocked-address", Algorithm: limit.FixedWindowFirstHit, Limit: 20, Window: throttle.Every(15 * time.Minute)}),
	[]limit.Rule{{Slug: "blocked-account", Algorithm: limit.TokenBucket, Limit: 20, Window: throttle.Every(24 * time.Hour)}},
)

// failedRules limit how often failed sign-ins of an account are recorded. Each of its browsers has
// attempts of its own, and a person can have as many browsers as sign-ins.
var failedRules = []limit.Rule{{Slug: "failed", Algorithm: limit.TokenBucket, Limit: 300, Window: throttle.Every(24 * time.Hour)}}

// sessionRules limit the changes of sessions by the session that sends them, so that a stolen one
// cannot keep the person from ending it. They are no changes of a tenant, which have their own
// limits.
var sessionRules = []limit.Rule{{Slug: "session", Algorithm: limit.TokenBucket, Limit: 60, Window: throttle.Every(time.Minute)}}

// signInLimits are the throttles of sign-ins and of the mails for them.
type signInLimits struct {
	unknown, own            *throttle.Throttle
	proved, newPasswords    *throttle.Throttle
	asked, askedFrom        *throttle.Throttle
	mailed, mailedOwn       *throttle.Throttle
	signupMails, ownSignups *throttle.Throttle
	emailMails              *throttle.Throttle
	blocked, failed         *throttle.Throttle
	sessions                *throttle.Throttle
}

func (d *dashboard) newSignInLimits() signInLimits {
	return signInLimits{
		unknown: d.newThrottle("sign-in", unknownRules...), own: d.newThrottle("sign-in", ownRules...),
		proved: d.newThrottle("signed-in", provedRules...), newPasswords: d.newThrottle("new-password", newPasswordRules...),
		blocked: d.newThrottle("sign-in-blocked", blockedRules...), failed: d.newThrottle("sign-in-failed", failedRules...),
		sessions: d.newThrottle("sessions", sessionRules...), emailMails: d.newThrottle("mail-email", emailRules...),
		asked: d.newThrottle("ask", askRules...), askedFrom: d.newThrottle("ask-mail", askAddressRules...),
		mailed: d.newThrottle("mail-password", mailRules...), mailedOwn: d.newThrottle("mail-password", ownMailRules...),
		signupMails: d.newThrottle("mail-sign-up", mailRules...), ownSignups: d.newThrottle("mail-sign-up", ownMailRules...),
	}
}

// ownName returns the name of the counters that unknown clients cannot use, or "" for an unknown
// one.
func (d *dashboard) ownName(ctx context.Context, r *http.Request, email string) (string, error) {
	account := accountKey(email)
	id, known, err := d.deviceFor(ctx, r, email)
	if err != nil {
		return "", err
	}
	if known {
		return account + " device " + id, nil
	}
	address := addressOf(r.RemoteAddr)
	known, err = d.Store.KnownAddress(ctx, email, address)
	if err != nil || !known {
		return "", err
	}
	return account + " address " + address, nil
}

// beginSignIn counts an attempt to sign in, or returns how long to wait.
func (d *dashboard) beginSignIn(ctx context.Context, r *http.Request, email string) (*throttle.Attempt, time.Duration, error) {
	own, err := d.ownName(ctx, r, email)
	if err != nil {
		return nil, 0, err
	}
	var try *throttle.Attempt
	var wait time.Duration
	if own != "" {
		try, wait = d.limits.own.Begin(ctx, own, own)
	} else {
		try, wait = d.limits.unknown.BeginFrom(ctx, accountKey(email), networksOf(r).Names())
	}
	return try, wait, nil
}

// mayAsk counts a request for a mail from the networks of a client. It does not depend on the
// account, so its answer reveals nothing.
func (d *dashboard) mayAsk(r *http.Request) (wait time.Duration) {
	names := networksOf(r).Names()
	_, wait = d.limits.askedFrom.Begin(r.Context(), names[:]...)
	return wait
}

// mayMail reports whether a mail may be sent to this address now, and counts it. Callers answer the
// same in both cases. known says that the client has signed in with this address before.
func (d *dashboard) mayMail(ctx context.Context, r *http.Request, email string, all, own *throttle.Throttle) (may, known bool, err error) {
	name, err := d.ownName(ctx, r, email)
	if err != nil {
		return false, false, err
	}
	if name != "" {
		try, _ := own.Begin(ctx, name)
		return try != nil, true, nil
	}
	try, _ := all.Begin(ctx, accountKey(email))
	return try != nil, false, nil
}

// byPerson is the source of mails about a person's own login.
func byPerson(email string) mail.Source { return mail.ByPerson(accountKey(email)) }

// mayRecordBlocked counts a record of a blocked client, or returns false.
func (l *signInLimits) mayRecordBlocked(r *http.Request, email string) bool {
	names, account := networksOf(r).Names(), accountKey(email)
	try, _ := l.blocked.Begin(r.Context(), account+" "+names[0], names[0], names[1], names[2], account)
	return try != nil
}

// maySwitch counts a change of sessions, or returns an error that says how long to wait.
func (d *dashboard) maySwitch(ctx context.Context, v *visit) error {
	if try, wait := d.limits.sessions.Begin(ctx, v.session.ID.String()); try == nil {
		return &tooFastError{wait, "Your sessions were changed many times in a short time."}
	}
	return nil
}
