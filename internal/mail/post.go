// Package mail sends the mails of the service: invitations, password links and sign-up links.
//
// letters.go writes the text of a mail. A Post takes the mail without making a request wait. It
// sends mails from bounded lanes, retries for some minutes, and reports at the end whether a mail
// was sent. lanes.go has the lanes, so that no source of mails delays or displaces those of another
// one. smtp.go sends to the mail server. In the demo, box.go stores the mails in memory, and a page
// shows them.
//
// Words: a Letter is the content of a mail for one address. A Post is what sends letters. The Box
// keeps them in memory instead. The Source of a letter is what caused it: a tenant, a person, or
// the network of an unknown client.
//
// Example: ann invites ben. The dashboard calls Send with the Invitation and returns the page. The
// mail server refuses the connection. The Post tries again after 5 seconds and after 30, and the
// third attempt succeeds. It then calls done with no error, and the list of members says that the
// mail was sent. After five failed attempts, about 13 minutes later, done gets the error.
package mail

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	sendTime = 30 * time.Second // for one attempt
	lastTime = 5 * time.Second  // for all remaining letters when the process stops
)

// attemptsAfter are the waits between the attempts to send a letter.
var attemptsAfter = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// Errors of unsent letters.
var (
	// ErrOff means that mail is not configured.
	ErrOff = errors.New("mail is off")
	// ErrStopped means that the process stopped before the letter was sent.
	ErrStopped = errors.New("the process stopped")
)

// Options are the settings of a Post.
type Options struct {
	SMTPURL    string // see ParseSMTP; "" for none
	From       string // the sender, as weir@example.com or Weir <weir@example.com>
	PublicURL  string // see ParsePublicURL; with "", links have only a path
	Box        *Box   // stores letters instead of an SMTP server; nil for none
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil for no metrics
	Now        func() time.Time      // nil: time.Now

	retryAfter []time.Duration // nil: attemptsAfter
	sendTime   time.Duration   // 0: sendTime
}

// transport delivers a letter.
type transport interface {
	send(ctx context.Context, l *Letter) error
}

// Post sends letters. Its methods may be called concurrently.
type Post struct {
	by         transport // nil if mail is off
	box        *Box
	public     *url.URL // nil if unknown
	log        *slog.Logger
	retryAfter []time.Duration
	sendTime   time.Duration
	now        func() time.Time

	lanes [lanes]*lane

	sent, failed prometheus.Counter
}

// parcel is a letter with its delivery state.
type parcel struct {
	letter   Letter
	holder   string // in its lane
	leave    func() // frees its place
	done     func(error)
	attempts int
}

// NewPost returns a Post. It sends nothing before Run. An error names the invalid option: SMTPURL,
// From or PublicURL.
func NewPost(o Options) (*Post, error) {
	p := &Post{
		box: o.Box, log: o.Logger, retryAfter: o.retryAfter, sendTime: cmp.Or(o.sendTime, sendTime),
		sent:   prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_mails_sent_total", Help: "Mails that the mail server accepted."}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_mails_failed_total", Help: "Mails that were not sent after all attempts."}),
	}
	if p.retryAfter == nil {
		p.retryAfter = attemptsAfter
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p.now = o.Now
	for kind := range p.lanes {
		p.lanes[kind] = newLane(kind)
	}
	if o.PublicURL != "" {
		public, err := ParsePublicURL(o.PublicURL)
		if err != nil {
			return nil, err
		}
		p.public = public
	}
	switch {
	case o.SMTPURL != "":
		by, err := newSMTP(o.SMTPURL, o.From, o.Now)
		if err != nil {
			return nil, err
		}
		p.by, p.box = by, nil
	case o.Box != nil:
		o.Box.now, o.Box.log = o.Now, o.Logger
		p.by = o.Box
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(p.sent, p.failed)
		for _, l := range p.lanes {
			o.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "weir_mails_waiting", Help: "Mails that were neither sent nor given up, by what caused them.",
				ConstLabels: prometheus.Labels{"source": l.name},
			}, func() float64 { return float64(l.count()) }))
		}
	}
	return p, nil
}

// Off returns a post that sends nothing and has no public address.
func Off() *Post { return &Post{} }

// ParsePublicURL parses the public address of the service: http or https, a host, and no path.
func ParsePublicURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return nil, errors.New("must be https://HOST or https://HOST:PORT")
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// On reports whether letters are sent.
func (p *Post) On() bool { return p.by != nil }

// Box returns the box that stores letters in development, or nil if they are sent.
func (p *Post) Box() *Box { return p.box }

// Link returns the URL of a path. Without a public address it returns only the path, which only a
// page can use: the host in a request is never trusted.
func (p *Post) Link(path string) string {
	if p.public == nil {
		return path
	}
	return p.public.String() + path
}

// Send queues a letter and does not wait. done, unless nil, is called once, from any goroutine:
// with nil after a mail server accepted the letter, or with the reason why it was not sent.
func (p *Post) Send(from Source, l Letter, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	if p.by == nil {
		done(ErrOff)
		return
	}
	lane, parcel := p.lanes[from.lane], &parcel{letter: l, holder: from.holder, done: done}
	if !lane.enter(parcel) {
		p.failed.Inc()
		if lane.mayLog(p.now()) {
			p.log.Error("mails of one kind fill their share of the queue; some are not sent", "kind", l.Kind, "source", lane.name)
		}
		done(ErrFull)
		return
	}
	lane.add(parcel)
}

// Waiting returns how many letters are neither sent nor given up, those that are being sent
// included.
func (p *Post) Waiting() (n int) {
	if p.by == nil {
		return 0
	}
	for _, l := range p.lanes {
		n += l.count()
	}
	return n
}

// Run sends letters until ctx ends. Then it tries the remaining ones once more, for a few seconds.
func (p *Post) Run(ctx context.Context) {
	if p.by == nil {
		return
	}
	var all sync.WaitGroup
	for _, l := range p.lanes {
		all.Go(func() { p.runLane(ctx, l) })
	}
	all.Wait()
}

func (p *Post) runLane(ctx context.Context, l *lane) {
	var all sync.WaitGroup
	for range l.workers {
		all.Go(func() {
			for parcel := l.next(ctx); parcel != nil; parcel = l.next(ctx) {
				l.sent(parcel.holder, p.try(ctx, l, parcel, &all))
			}
		})
	}
	all.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	for parcel := l.take(); parcel != nil; parcel = l.take() {
		err := p.by.send(last, &parcel.letter)
		if err != nil {
			err = errors.Join(ErrStopped, err)
		}
		p.finish(parcel, err)
		l.sent(parcel.holder, false)
	}
}

// try makes one attempt, and schedules the next one after a temporary error. It reports whether the
// attempt took all of its time.
func (p *Post) try(ctx context.Context, l *lane, parcel *parcel, all *sync.WaitGroup) (slow bool) {
	attempt, cancel := context.WithTimeout(ctx, p.sendTime)
	defer cancel()
	err := p.by.send(attempt, &parcel.letter)
	slow = ctx.Err() == nil && attempt.Err() != nil
	parcel.attempts++
	switch {
	case err == nil || permanent(err):
		p.finish(parcel, err)
		return slow
	case ctx.Err() != nil: // interrupted by the stop, not by the server: runLane tries it once more
		l.add(parcel)
		return slow
	case parcel.attempts > len(p.retryAfter):
		p.finish(parcel, err)
		return slow
	}
	p.log.Warn("mail not sent; retrying", "kind", parcel.letter.Kind, "attempt", parcel.attempts, "error", err)
	all.Go(func() { // its place bounds the number of these goroutines
		timer := time.NewTimer(p.retryAfter[parcel.attempts-1])
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		l.add(parcel)
	})
	return slow
}

func (p *Post) finish(parcel *parcel, err error) {
	defer parcel.leave()
	if err != nil {
		p.failed.Inc()
		p.log.Error("mail not sent; giving up", "kind", parcel.letter.Kind, "attempts", parcel.attempts, "error", err)
	} else {
		p.sent.Inc()
	}
	parcel.done(err)
}
