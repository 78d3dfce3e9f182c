// Package mail sends the mails of the service: invitations, password links and sign-up links.
//
// letters.go writes the text of a mail. A Post takes the mail without making a request wait. It
// sends mails from a bounded queue, retries for some minutes, and reports at the end whether a mail
// was sent. smtp.go sends to the mail server. In the demo, box.go stores the mails in memory, and a
// page shows them.
package mail

import (
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
	mostWaiting = 1000             // letters, sent ones excepted
	workers     = 2                // letters that are sent at once
	sendTime    = 30 * time.Second // for one attempt
	lastTime    = 5 * time.Second  // for all that is left when the process stops
)

// attemptsAfter are the waits between the attempts to send a letter.
var attemptsAfter = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// Errors of a letter that was not sent.
var (
	// ErrOff: there is nothing to send with.
	ErrOff = errors.New("mail is off")
	// ErrFull: too many letters wait.
	ErrFull = errors.New("too many letters wait to be sent")
	// ErrStopped: the process stopped before the letter could be sent.
	ErrStopped = errors.New("the process stopped")
)

// Options are what a Post is made of.
type Options struct {
	SMTPURL    string // see ParseSMTP; "": none
	From       string // the sender, as weir@example.com or Weir <weir@example.com>
	PublicURL  string // see ParsePublicURL; "": links have a path alone
	Box        *Box   // where letters go in place of an SMTP server; nil: nowhere
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: nobody counts
	Now        func() time.Time      // nil: time.Now

	retryAfter []time.Duration // nil: attemptsAfter
}

// transport takes a letter to where it is read.
type transport interface {
	send(ctx context.Context, l *Letter) error
}

// Post sends letters. Its methods may be called at once from many goroutines.
type Post struct {
	by         transport // nil: mail is off
	box        *Box
	public     *url.URL // nil: unknown
	log        *slog.Logger
	retryAfter []time.Duration

	queue  chan *parcel
	places chan struct{} // has one for each letter that is not done with; the queue holds as many

	sent, failed prometheus.Counter
}

// parcel is a letter on its way.
type parcel struct {
	letter   Letter
	done     func(error)
	attempts int
}

// NewPost makes a post. It sends nothing before Run. Errors name what of SMTPURL, From or PublicURL
// cannot be right.
func NewPost(o Options) (*Post, error) {
	p := &Post{
		box: o.Box, log: o.Logger, retryAfter: o.retryAfter,
		queue: make(chan *parcel, mostWaiting), places: make(chan struct{}, mostWaiting),
		sent:   prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_mails_sent_total", Help: "Mails that were handed over to the mail server."}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_mails_failed_total", Help: "Mails that were given up."}),
	}
	if p.retryAfter == nil {
		p.retryAfter = attemptsAfter
	}
	if o.Now == nil {
		o.Now = time.Now
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
	}
	return p, nil
}

// Off returns a post that sends nothing and knows no public address.
func Off() *Post { return &Post{} }

// ParsePublicURL reads the address under which people reach the service: http or https, a host,
// and nothing after it.
func ParsePublicURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return nil, errors.New("must be https://HOST or https://HOST:PORT")
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// On reports whether letters are sent at all.
func (p *Post) On() bool { return p.by != nil }

// Box is where letters are kept in development; nil: they are sent.
func (p *Post) Box() *Box { return p.box }

// Link returns what leads to a path of ours. Without a public address it is the path alone, which
// only a page can show: what a request says of the host that it was sent to is never believed.
func (p *Post) Link(path string) string {
	if p.public == nil {
		return path
	}
	return p.public.String() + path
}

// Send has a letter sent, and does not wait for it. done is called once, from anywhere, with nil
// where a mail server has taken the letter, and with why not where it is given up; it may be nil.
func (p *Post) Send(l Letter, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	if p.by == nil {
		done(ErrOff)
		return
	}
	select {
	case p.places <- struct{}{}:
		p.queue <- &parcel{letter: l, done: done}
	default:
		p.giveUp(&parcel{letter: l, done: done}, ErrFull)
	}
}

// Run sends until ctx ends, and then once more tries what is left, for a few seconds.
func (p *Post) Run(ctx context.Context) {
	var all sync.WaitGroup
	for range workers {
		all.Go(func() { p.work(ctx, &all) })
	}
	all.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	for {
		select {
		case parcel := <-p.queue:
			if err := p.by.send(last, &parcel.letter); err != nil {
				p.finish(parcel, errors.Join(ErrStopped, err))
			} else {
				p.finish(parcel, nil)
			}
		default:
			return
		}
	}
}

func (p *Post) work(ctx context.Context, all *sync.WaitGroup) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case parcel := <-p.queue:
			p.try(ctx, parcel, all)
		}
	}
}

// try makes one attempt, and arranges for the next one where that may help.
func (p *Post) try(ctx context.Context, parcel *parcel, all *sync.WaitGroup) {
	attempt, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	err := p.by.send(attempt, &parcel.letter)
	parcel.attempts++
	switch {
	case err == nil || permanent(err):
		p.finish(parcel, err)
		return
	case ctx.Err() != nil: // cut off by the stop, which is no fault of the server: Run tries it last
		p.queue <- parcel
		return
	case parcel.attempts > len(p.retryAfter):
		p.finish(parcel, err)
		return
	}
	p.log.Warn("a mail was not sent; trying again", "kind", parcel.letter.Kind, "attempt", parcel.attempts, "error", err)
	all.Go(func() { // its place keeps the number of these bounded
		timer := time.NewTimer(p.retryAfter[parcel.attempts-1])
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		p.queue <- parcel // which has room for every place
	})
}

func (p *Post) finish(parcel *parcel, err error) {
	<-p.places
	if err != nil {
		p.giveUp(parcel, err)
		return
	}
	p.sent.Inc()
	parcel.done(nil)
}

func (p *Post) giveUp(parcel *parcel, err error) {
	p.failed.Inc()
	p.log.Error("a mail was given up", "kind", parcel.letter.Kind, "attempts", parcel.attempts, "error", err)
	parcel.done(err)
}
