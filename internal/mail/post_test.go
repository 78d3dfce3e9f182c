package mail

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"mime"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// lockedBuffer collects log lines from several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// running starts a post that stops after the test.
func running(t *testing.T, o Options) (p *Post, log *lockedBuffer) {
	t.Helper()
	log = &lockedBuffer{}
	o.Logger, o.From = slog.New(slog.NewJSONHandler(log, nil)), "Weir <weir@weir.example>"
	p, err := NewPost(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return p, log
}

// idle waits until no letter is unfinished.
func idle(t *testing.T, p *Post) {
	t.Helper()
	require.Eventually(t, func() bool { return p.Waiting() == 0 }, time.Minute, time.Millisecond)
}

// sent sends a letter and waits for the result.
func sent(t *testing.T, p *Post, l Letter) error {
	t.Helper()
	done := make(chan error, 1)
	p.Send(ByPerson(l.To), l, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("no result for the letter")
		return nil
	}
}

func TestLetterIsSent(t *testing.T) {
	server := newMailServer(t)
	registry := prometheus.NewRegistry()
	p, log := running(t, Options{SMTPURL: server.url(), PublicURL: "https://weir.example/", Registerer: registry})
	require.True(t, p.On())
	link := p.Link("/invitation/secret-token")
	require.Equal(t, "https://weir.example/invitation/secret-token", link)
	require.NoError(t, sent(t, p, Invitation("ann@example.com", `Åcme & "Söhne" <b>`, "bob@example.com", "an editor", link, "7 days")))
	got := <-server.taken
	require.Contains(t, got.from, "<weir@weir.example>")
	require.Contains(t, got.to, "<ann@example.com>")
	header, parts := read(t, got.data)
	subject, err := new(mime.WordDecoder).DecodeHeader(header.Get("Subject"))
	require.NoError(t, err)
	require.Equal(t, `Join Åcme & "Söhne" <b> on Weir`, subject)
	require.Equal(t, `"Weir" <weir@weir.example>`, header.Get("From"))
	require.Equal(t, "<ann@example.com>", header.Get("To"))
	require.Equal(t, "auto-generated", header.Get("Auto-Submitted"))
	require.NotEmpty(t, header.Get("Date"))
	require.NotEmpty(t, header.Get("Message-ID"))
	require.Contains(t, parts["text/plain"], `bob@example.com has invited you to work in Åcme & "Söhne" <b> on Weir, as an editor.`)
	require.Contains(t, parts["text/plain"], "\n"+link+"\n")
	require.Contains(t, parts["text/html"], `<a href="`+link+`">Accept the invitation</a>`)
	require.Contains(t, parts["text/html"], "Åcme &amp; &#34;Söhne&#34; &lt;b&gt;", "a name is text, not markup")
	require.NotContains(t, log.String(), "secret-token")
	idle(t, p)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP weir_mails_failed_total Mails that were not sent after all attempts.
		# TYPE weir_mails_failed_total counter
		weir_mails_failed_total 0
		# HELP weir_mails_sent_total Mails that the mail server accepted.
		# TYPE weir_mails_sent_total counter
		weir_mails_sent_total 1
		# HELP weir_mails_waiting Mails that were neither sent nor given up, by what caused them.
		# TYPE weir_mails_waiting gauge
		weir_mails_waiting{source="password"} 0
		weir_mails_waiting{source="person"} 0
		weir_mails_waiting{source="signup"} 0
		weir_mails_waiting{source="tenant"} 0
	`)))
}

// A name that a tenant chose cannot add lines to a mail's header, and an address cannot add
// recipients.
func TestNoHeaderInjection(t *testing.T) {
	server := newMailServer(t)
	p, _ := running(t, Options{SMTPURL: server.url()})
	for _, end := range []string{"\r\n", "\n", "\r", "\u2028", "\x00"} {
		require.NoError(t, sent(t, p, Invitation("ann@example.com", "Acme"+end+"Bcc: eve@example.com", "bob"+end+"X-Bad: 1", "a viewer", "/x", "7 days")))
		got := <-server.taken
		header, _ := read(t, got.data)
		require.Empty(t, header.Get("Bcc"))
		require.Empty(t, header.Get("X-Bad"))
		require.NotContains(t, got.to, "eve")
	}
	for _, to := range []string{"ann@example.com\r\nBcc: eve@example.com", "ann@example.com\r\nRCPT TO:<eve@example.com>", "ann", ""} {
		require.Error(t, sent(t, p, NewPassword(to, "/x", "1 hour")), "%q", to)
	}
	require.Empty(t, server.taken)
}

// A program that invites people is not said to be the operator.
func TestInvitationByAProgram(t *testing.T) {
	l := Invitation("ann@example.com", "Acme\u202e", "", "a viewer", "/x", "7 days")
	require.Equal(t, "You are invited to work in Acme on Weir, as a viewer.", l.Before[0])
	require.Equal(t, "Join Acme on Weir", l.Subject)
}

func TestLongNamesAreCut(t *testing.T) {
	l := Invitation("ann@example.com", strings.Repeat("ä", 1000), "bob", "a viewer", "/x", "7 days")
	require.Less(t, len([]rune(l.Subject)), 120)
}

// Temporary errors are retried, permanent ones are not.
func TestRetries(t *testing.T) {
	server := newMailServer(t)
	registry := prometheus.NewRegistry()
	p, log := running(t, Options{SMTPURL: server.url(), Registerer: registry, retryAfter: []time.Duration{0, 0}})
	letter := NewPassword("ann@example.com", "/reset/secret-token", "1 hour")

	server.refuseNext("451 Later", "450 Not now")
	require.NoError(t, sent(t, p, letter))
	<-server.taken
	require.Equal(t, 2, strings.Count(log.String(), "retrying"))

	server.refuseNext("451 Later", "451 Later", "451 Later")
	require.ErrorContains(t, sent(t, p, letter), "451", "three attempts are enough")
	require.Equal(t, 1, strings.Count(log.String(), "giving up"))

	server.refuseNext("550 No such user")
	require.ErrorContains(t, sent(t, p, letter), "550")
	require.Empty(t, server.taken)
	require.NotContains(t, log.String(), "secret-token")
	require.Equal(t, 2.0, testutil.ToFloat64(p.failed))
	idle(t, p) // no letter keeps its place
}

func TestServerUnavailable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	p, _ := running(t, Options{SMTPURL: "smtp://" + address, retryAfter: []time.Duration{0}})
	require.Error(t, sent(t, p, NewPassword("ann@example.com", "/x", "1 hour")))
}

// While the mail server is unavailable, letters do not fill the memory, and no caller waits for
// them.
func TestWaitingLettersAreBounded(t *testing.T) {
	p, err := NewPost(Options{Box: &Box{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	most := 0
	for kind, bounds := range laneBounds {
		most += 2 * bounds.most
		for holder := range 2000 {
			p.Send(Source{kind, strconv.Itoa(holder)}, Letter{}, func(err error) {
				if !errors.Is(err, ErrFull) {
					t.Error("nothing runs yet", err)
				}
			})
		}
	}
	require.Equal(t, most, p.Waiting())
}

// When the process stops, each waiting letter is tried once more, and its result is reported.
func TestStop(t *testing.T) {
	server := newMailServer(t)
	server.refuseNext("451 Later", "451 Later", "451 Later")
	p, err := NewPost(Options{
		SMTPURL: server.url(), From: "weir@weir.example", Logger: slog.New(slog.DiscardHandler), retryAfter: []time.Duration{time.Hour},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 2)
	for range 2 {
		p.Send(ByPerson("ann"), NewPassword("ann@example.com", "/x", "1 hour"), func(err error) { results <- err })
	}
	var all sync.WaitGroup
	all.Go(func() { p.Run(ctx) })
	require.Eventually(t, func() bool { // both were tried, and wait for an hour
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(server.refuse) == 1
	}, time.Minute, time.Millisecond)
	cancel()
	all.Wait()
	first, second := <-results, <-results
	if first == nil {
		first, second = second, first
	}
	require.ErrorIs(t, first, ErrStopped)
	require.NoError(t, second)
	require.Len(t, server.taken, 1)
}

func TestOff(t *testing.T) {
	p, err := NewPost(Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.False(t, p.On())
	require.Equal(t, "/invitation/x", p.Link("/invitation/x"))
	var told error
	p.Send(Source{}, Letter{}, func(err error) { told = err })
	require.ErrorIs(t, told, ErrOff)
	p.Send(Source{}, Letter{}, nil)
}

func TestBox(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	box := &Box{}
	p, log := running(t, Options{Box: box, PublicURL: "http://localhost:8080", Now: func() time.Time { return at }})
	require.Same(t, box, p.Box())
	for range mostKept {
		require.NoError(t, sent(t, p, NewPassword("ann@example.com", p.Link("/reset/x"), "1 hour")))
	}
	require.NoError(t, sent(t, p, SignUp("last@example.com", "/x", "1 day")))
	letters := box.Letters()
	require.Len(t, letters, mostKept)
	require.Equal(t, "last@example.com", letters[0].To)
	require.Equal(t, at, letters[0].At)
	require.Contains(t, log.String(), "http://localhost:8080/reset/x", "a developer without a mailbox reads it in the log")
}

func TestSettings(t *testing.T) {
	for _, bad := range []string{
		"", "mail.example", "http://mail.example", "smtp://", "smtp://mail.example:x", "smtp://mail.example:0", "smtp://mail.example:99999",
		"smtp://user@mail.example", "smtp://:secret@mail.example", "smtp://mail.example/path", "smtp://mail.example?x=1", "smtp://u:secret@\x00",
	} {
		err := ParseSMTP(bad)
		require.Error(t, err, "%q", bad)
		require.NotContains(t, err.Error(), "secret")
	}
	for text, want := range map[string]server{
		"smtp://mail.example":           {host: "mail.example", port: 587},
		"smtps://u:p%40ss@mail.example": {host: "mail.example", port: 465, user: "u", password: "p@ss", tls: true},
		"smtp://[::1]:2525/":            {host: "::1", port: 2525},
		"smtp://u:p@mail.example:25":    {host: "mail.example", port: 25, user: "u", password: "p"},
	} {
		got, err := parseSMTP(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"", "weir.example", "ftp://weir.example", "https://", "https://weir.example/path", "https://u:p@weir.example", "https://weir.example?x", "https:weir.example"} {
		_, err := ParsePublicURL(bad)
		require.Error(t, err, "%q", bad)
	}
	for _, bad := range []string{"", "weir", "weir@example.com\r\nBcc: x@example.com", "a@example.com, b@example.com", strings.Repeat("a", 400) + "@example.com"} {
		_, err := ParseFrom(bad)
		require.Error(t, err, "%q", bad)
	}
	_, err := NewPost(Options{SMTPURL: "smtp://mail.example", From: "nobody"})
	require.ErrorContains(t, err, "sender")
	_, err = NewPost(Options{PublicURL: "nowhere"})
	require.ErrorContains(t, err, "https://HOST")
}
