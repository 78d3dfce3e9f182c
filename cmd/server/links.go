package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"weir/internal/dashboard"
	"weir/internal/mail"
	"weir/internal/tenants"
)

// signupLinkCommand lets the operator invite a person to sign up.
type signupLinkCommand struct {
	Email string `arg:"" help:"Email address of the person."`
}

// Run prints the link, and sends it by mail if mail is on.
func (c signupLinkCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	if dashboard.Signup(cfg.Signup) == dashboard.SignupClosed {
		return settingError("WEIR_SIGNUP is closed: a sign-up link would not work")
	}
	return makeLink(ctx, cfg, log, func(store *tenants.Store, post *mail.Post) (mail.Letter, error) {
		token, err := store.NewSignupLink(ctx, c.Email, tenants.SignupGiftLife)
		return mail.SignUp(c.Email, post.Link("/signup/"+token), "7 days"), err
	}, nil)
}

// operatorLinkCommand makes a person an operator of the service.
type operatorLinkCommand struct {
	Email string `arg:"" help:"Email address of the person."`
}

// Run prints the link, and sends it by mail if mail is on. A new link replaces one that the person
// has not used.
func (c operatorLinkCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	var created tenants.Invitation
	return makeLink(ctx, cfg, log, func(store *tenants.Store, post *mail.Post) (mail.Letter, error) {
		platform, err := store.EnsurePlatform(ctx)
		if err != nil {
			return mail.Letter{}, err
		}
		if created, err = inviteOwner(ctx, store, tenants.AsSystem(platform.ID, "operator-link"), c.Email); err != nil {
			return mail.Letter{}, err
		}
		return mail.Invitation(created.Email, created.Tenant, "The operator", "an owner", post.Link("/invitation/"+created.Token), "7 days"), nil
	}, func(store *tenants.Store, state tenants.MailState) error {
		return store.RecordInvitation(ctx, created, state)
	})
}

// inviteOwner invites a person as an owner of the actor's tenant. It replaces an open invitation.
func inviteOwner(ctx context.Context, store *tenants.Store, actor tenants.Actor, email string) (tenants.Invitation, error) {
	created, err := store.InviteMember(ctx, actor, email, tenants.Owner)
	var conflict *tenants.ConflictError
	if !errors.As(err, &conflict) || conflict.Code != tenants.CodeMemberExists {
		return created, err
	}
	member, err := store.MemberByEmail(ctx, actor, email)
	if err != nil {
		return created, err
	}
	if member.State != tenants.MemberInvited || member.Role != tenants.Owner {
		return created, conflict
	}
	return store.ResendInvitation(ctx, actor, member.ID)
}

// passwordLinkCommand helps a person who lost their password, if mail is off.
type passwordLinkCommand struct {
	Email string `arg:"" help:"Email address of the person."`
}

// Run prints the link, and sends it by mail if mail is on.
func (c passwordLinkCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	return makeLink(ctx, cfg, log, func(store *tenants.Store, post *mail.Post) (mail.Letter, error) {
		person, err := store.PersonWithLogin(ctx, c.Email)
		if errors.Is(err, tenants.ErrNotFound) {
			return mail.Letter{}, errors.New("there is no login with this email")
		}
		if err != nil {
			return mail.Letter{}, err
		}
		token, err := store.NewPasswordLink(ctx, person)
		return mail.NewPassword(person.Email, post.Link("/reset/"+token), "1 hour"), err
	}, nil)
}

// makeLink prints the link of a letter, and sends the letter if mail is on. Then it calls record,
// unless that is nil, with the result of sending.
func makeLink(ctx context.Context, cfg *Config, log *slog.Logger, write func(*tenants.Store, *mail.Post) (mail.Letter, error),
	record func(*tenants.Store, tenants.MailState) error,
) error {
	if err := firstError(cfg.requireDatabase(), cfg.requireMail()); err != nil {
		return err
	}
	store, err := openStore(ctx, cfg, log, commandWait)
	if err != nil {
		return err
	}
	defer store.Close()
	post, err := mail.NewPost(mail.Options{SMTPURL: string(cfg.SMTPURL), From: cfg.MailFrom, PublicURL: cfg.PublicURL, Logger: log})
	if err != nil {
		return err
	}
	letter, err := write(store, post)
	if err != nil {
		return err
	}
	fmt.Println(letter.Link.URL)
	state, err := sendNow(ctx, post, letter)
	if record != nil {
		err = errors.Join(err, record(store, state))
	}
	return err
}

// sendNow sends a letter and waits for the result.
func sendNow(ctx context.Context, post *mail.Post, letter mail.Letter) (tenants.MailState, error) {
	if !post.On() {
		return tenants.MailOff, nil
	}
	sent := make(chan error, 1)
	post.Send(mail.ByPerson(letter.To), letter, func(err error) { sent <- err })
	at, cancel := context.WithCancel(ctx)
	cancel() // Run tries once to send what is in the queue, and returns
	post.Run(at)
	if err := <-sent; err != nil {
		return tenants.MailFailed, fmt.Errorf("the link was created, but the mail was not sent: %w", err)
	}
	return tenants.MailSent, nil
}
