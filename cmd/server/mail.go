package main

import (
	"fmt"

	"weir/internal/mail"
)

// newPost makes what sends mails: through the server that is set, into the demo's box, or nowhere.
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
