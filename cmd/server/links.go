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

// signupLinkCommand lets somebody sign up who was chosen by the operator.
type signupLinkCommand struct {
	Email string `arg:"" help:"Whom it is for."`
}

// Run prints the link, and mails it where mail is on.
func (c signupLinkCommand) Run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	if dashboard.Signup(cfg.Signup) == dashboard.SignupClosed {
		return settingError("WEIR_SIGNUP is closed: the link would lead nowhere")
	}
	return makeLink(ctx, cfg, log, func(store *tenants.Store, post *mail.Post) (mail.Letter, error) {
		token, err := store.NewSignupLink(ctx, c.Email, tenants.SignupGiftLife)
		return mail.SignUp(c.Email, post.Link("/signup/"+token), "7 days"), err
	})
}

// passwordLinkCommand helps somebody who forgot their password, where mail cannot.
type passwordLinkCommand struct {
	Email string `arg:"" help:"Whose password it is."`
}

// Run prints the link, and mails it where mail is on.
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
	})
}

// makeLink prints the link of a letter and sends the letter, if it can be sent, before it returns.
func makeLink(ctx context.Context, cfg *Config, log *slog.Logger, write func(*tenants.Store, *mail.Post) (mail.Letter, error)) error {
	if err := firstError(cfg.requireDatabase(), cfg.requireMail()); err != nil {
		return err
	}
	store, err := openStore(ctx, cfg, log)
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
	if !post.On() {
		return nil
	}
	sent := make(chan error, 1)
	post.Send(letter, func(err error) { sent <- err })
	at, cancel := context.WithCancel(ctx)
	cancel() // what waits is tried once, and that is all there is
	post.Run(at)
	if err := <-sent; err != nil {
		return fmt.Errorf("the link was made, and the mail was not sent: %w", err)
	}
	return nil
}
