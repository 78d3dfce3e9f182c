package mail

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/textproto"
	"net/url"
	"strconv"
	"time"

	gomail "github.com/wneessen/go-mail"
)

// errSMTPURL does not include the text, which has a password.
var errSMTPURL = errors.New("must be smtp://USER:PASSWORD@HOST:PORT, or smtps:// for TLS from the start")

// server is the address of an SMTP server, and how to connect to it.
type server struct {
	host           string
	port           int
	user, password string
	tls            bool // from the start
}

// ParseSMTP returns an error if the URL of a mail server is invalid.
func ParseSMTP(text string) error {
	_, err := parseSMTP(text)
	return err
}

func parseSMTP(text string) (server, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "smtp" && u.Scheme != "smtps" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return server{}, errSMTPURL
	}
	s := server{host: u.Hostname(), port: 587, tls: u.Scheme == "smtps"}
	if s.tls {
		s.port = 465
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return server{}, errSMTPURL
		}
		s.port = int(n)
	}
	if u.User != nil {
		s.user = u.User.Username()
		s.password, _ = u.User.Password()
		if s.user == "" || s.password == "" {
			return server{}, errSMTPURL
		}
	}
	return s, nil
}

// ParseFrom parses the sender of letters.
func ParseFrom(text string) (*mail.Address, error) {
	const longest = 300 // bytes: parsing takes more than linear time
	if len(text) > longest {
		return nil, errors.New("is too long")
	}
	from, err := mail.ParseAddress(text)
	if err != nil {
		return nil, errors.New("must be an address such as weir@example.com, or Weir <weir@example.com>")
	}
	return from, nil
}

// smtp sends letters to a mail server. Letters are rare, so each has its own connection.
type smtp struct {
	client *gomail.Client
	from   *mail.Address
	now    func() time.Time
}

func newSMTP(text, from string, now func() time.Time) (*smtp, error) {
	s, err := parseSMTP(text)
	if err != nil {
		return nil, err
	}
	sender, err := ParseFrom(from)
	if err != nil {
		return nil, fmt.Errorf("the sender: %w", err)
	}
	options := []gomail.Option{gomail.WithPort(s.port), gomail.WithTimeout(sendTime)}
	switch {
	case s.tls:
		options = append(options, gomail.WithSSL())
	case s.user != "" && !loopback(s.host): // an attacker who blocks TLS does not get the password
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSOpportunistic))
	}
	if s.user != "" {
		options = append(options, gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername(s.user), gomail.WithPassword(s.password))
	}
	client, err := gomail.NewClient(s.host, options...)
	if err != nil {
		return nil, errSMTPURL
	}
	return &smtp{client: client, from: sender, now: now}, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (s *smtp) send(ctx context.Context, l *Letter) error {
	m := gomail.NewMsg()
	m.FromMailAddress(s.from)
	if err := m.To(l.To); err != nil {
		return &unfit{err}
	}
	text, html, err := l.bodies()
	if err != nil {
		return &unfit{err}
	}
	m.Subject(oneLine(l.Subject))
	m.SetDateWithValue(s.now())
	m.SetMessageID()
	m.SetGenHeader("Auto-Submitted", "auto-generated") // prevents automatic replies
	m.SetBodyString(gomail.TypeTextPlain, text)
	m.AddAlternativeString(gomail.TypeTextHTML, html)
	return s.client.DialAndSendWithContext(ctx, m)
}

// unfit is the error of a letter that no server can send.
type unfit struct{ error }

func (u *unfit) Unwrap() error { return u.error }

// permanent reports whether a retry is useless: the letter is invalid, or the server has refused
// the letter or the client permanently.
func permanent(err error) bool {
	var bad *unfit
	var answer *textproto.Error
	var sending *gomail.SendError
	switch {
	case errors.As(err, &bad):
		return true
	case errors.As(err, &sending):
		return sending.ErrorCode() >= 500
	case errors.As(err, &answer):
		return answer.Code >= 500
	}
	return false
}
