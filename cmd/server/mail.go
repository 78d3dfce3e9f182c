package main

import (
	"fmt"

	"weir/internal/mail"
)

// newPost returns the sender of mails: to the mail server, or to the demo's mailbox, or to neither.
func (s *service) newPost() (*mail.Post, error) {
	public := s.cfg.PublicURL
	if public == "" && s.cfg.box != nil { // on one machine, for one person
		if public = s.front.url("WEIR_HTTP_ADDR"); public == "" {
			public = s.front.url("WEIR_HTTPS_ADDR")
		}
	}
	post, err := mail.NewPost(mail.Options{
		SMTPURL: string(s.cfg.SMTPURL), From: s.cfg.MailFrom, PublicURL: public, Box: s.cfg.box, Logger: s.log, Registerer: s.registry,
	})
	if err != nil {
		return nil, fmt.Errorf("WEIR_SMTP_URL, WEIR_MAIL_FROM or WEIR_PUBLIC_URL: %w", err)
	}
	return post, nil
}
