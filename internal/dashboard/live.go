package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"weir/internal/places"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// Limits for live pages.
const (
	maxStreams        = 256 // of this process, without those that are about to end
	maxTenantStreams  = 96
	maxPersonStreams  = 24 // of all sessions of a person
	maxSessionStreams = 6  // of one session: a browser opens no more to one host over HTTP/1.1
	liveEvery         = time.Second
	liveHeartbeat     = 15 * time.Second // shorter than the idle timeout of proxies
	liveWrite         = 10 * time.Second // for one write: a browser that does not read is disconnected
	liveCheck         = 5 * time.Second  // for one query of sessions
	// liveUnknown is how long pages continue while Postgres cannot verify their sessions.
	liveUnknown = 30 * time.Second
	// liveAgain is when a browser connects again whose page has ended for one of another tenant.
	liveAgain = 30 * time.Second
)

// hub updates live pages by server-sent events. The content that pages share is computed once a
// second for any number of pages, and only while somebody looks. A stream ends with its session,
// with the membership in its tenant, and with the process. When all places are taken, it also ends
// for a tenant with fewer pages: the oldest of the session with the most, of the tenant with the
// most.
type hub struct {
	d     *dashboard
	crowd *places.Crowd[uuid.UUID] // of sessions, within persons, within tenants

	mu       sync.Mutex
	streams  map[*openPage]struct{}
	topics   map[topicKey]*topic
	watching bool
}

func newHub(d *dashboard) *hub {
	return &hub{d: d, crowd: places.NewCrowd[uuid.UUID](maxStreams), streams: map[*openPage]struct{}{}, topics: map[topicKey]*topic{}}
}

// topicKey identifies the content that streams share.
type topicKey struct {
	tenant uuid.UUID
	name   string // of the page with its parameters
}

// part is one piece of a page, by the name that the page uses for it.
type part struct {
	name string
	page templ.Component
}

// source computes a topic's parts for the current time. It may omit unchanged parts.
type source func(ctx context.Context, tick int) ([]part, error)

// topic is the current content of some streams.
type topic struct {
	key  topicKey
	stop context.CancelFunc

	mu        sync.Mutex
	listeners int // guarded by the hub's lock
	version   int64
	parts     []livePart
	changed   chan struct{} // closed at the next change
}

type livePart struct {
	name    string
	html    []byte
	version int64
}

// openPage is one live page.
type openPage struct {
	session, person, tenant uuid.UUID

	over    chan struct{} // closed when the page must end
	end     func()
	crowded atomic.Bool // it ends for a page of another tenant, and not because its session has ended
	leave   func()      // leaves the crowd
}

// errStreams: the maximum number of live pages is open.
var errStreams = errors.New("too many live pages are open")

// stream makes a handler of a function that updates a page of a tenant. It does not use up the
// message about what was just done, which is for the page, and is no use of the session: browsers
// connect again while nobody is there.
func (d *dashboard) stream(handle func(http.ResponseWriter, *http.Request, *visit) error) http.HandlerFunc {
	return d.personBy(d.unusedSession, func(w http.ResponseWriter, r *http.Request, v *visit) error {
		if v.session.Current == nil {
			return tenants.ErrNotFound
		}
		return handle(w, r, v)
	})
}

// live serves a topic to an open page.
func (d *dashboard) live(w http.ResponseWriter, r *http.Request, v *visit, name string, from source) error {
	s, t, err := d.hub.join(v, topicKey{v.actor().TenantID(), name}, from)
	if err != nil {
		return err
	}
	defer d.hub.leave(s, t)
	requestOf(r.Context()).leave() // it uses no place while nothing happens
	out := &eventWriter{w: w, control: http.NewResponseController(w)}
	// The server's timeouts are for requests that are answered immediately. If they cannot be
	// disabled, the browser reconnects.
	_ = out.control.SetReadDeadline(time.Time{})
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // for proxies that would buffer it
	w.WriteHeader(http.StatusOK)
	out.comment("open")
	beat := time.NewTicker(liveHeartbeat)
	defer beat.Stop()
	var seen int64
	for out.err == nil {
		parts, version, changed := t.since(seen)
		for i := range parts {
			out.event(parts[i].name, parts[i].html)
		}
		seen = version
		out.flush()
		select {
		case <-changed:
		case <-beat.C:
			out.comment("still here")
		case <-s.over:
			if s.crowded.Load() {
				out.later(liveAgain)
			} else {
				out.event("over", nil)
			}
			out.flush()
			return nil
		case <-d.Stopping:
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
	return nil // the browser has disconnected
}

// join adds a stream. The caller must call leave.
func (h *hub) join(v *visit, key topicKey, from source) (*openPage, *topic, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var session, person, tenant int
	for s := range h.streams {
		if s.session == v.session.ID {
			session++
		}
		if s.person == v.session.PersonID {
			person++
		}
		if s.tenant == key.tenant {
			tenant++
		}
	}
	// Those that are about to end count here, too: a browser that does not read delays its end.
	if stopped(h.d.Stopping) || len(h.streams) >= 2*maxStreams ||
		session >= maxSessionStreams || person >= maxPersonStreams || tenant >= maxTenantStreams {
		return nil, nil, errStreams
	}
	s := &openPage{session: v.session.ID, person: v.session.PersonID, tenant: key.tenant, over: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.over) })
	var ok bool
	if s.leave, ok = h.crowd.EnterShare(s.makeRoom, s.session, s.person, s.tenant); !ok {
		return nil, nil, errStreams
	}
	h.streams[s] = struct{}{}
	if !h.watching {
		h.watching = true
		go h.watch()
	}
	t := h.topics[key]
	if t == nil {
		ctx, stop := context.WithCancel(context.Background())
		t = &topic{key: key, stop: stop, changed: make(chan struct{})}
		h.topics[key] = t
		go h.run(ctx, t, from)
	}
	t.listeners++
	return s, t, nil
}

// makeRoom ends a page for one of another tenant.
func (s *openPage) makeRoom() {
	s.crowded.Store(true)
	s.end()
}

func (h *hub) leave(s *openPage, t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.leave()
	delete(h.streams, s)
	if t.listeners--; t.listeners == 0 {
		t.stop()
		delete(h.topics, t.key)
	}
}

func stopped(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run computes a topic once a second, until no stream uses it.
func (h *hub) run(ctx context.Context, t *topic, from source) {
	ticks := time.NewTicker(liveEvery)
	defer ticks.Stop()
	for tick := 0; ; tick++ {
		parts, err := from(ctx, tick)
		if err == nil {
			err = h.show(ctx, t, parts)
		}
		noted := errors.Is(err, tenants.ErrUnavailable) || errors.Is(err, errBusy) || errors.Is(err, tenants.ErrTooManyReports) // elsewhere
		if err != nil && ctx.Err() == nil && !noted {
			h.d.Logger.Error("cannot update a live page", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// show renders parts when it is the tenant's turn, for which it waits as long as a stream uses the
// topic: a source may omit parts until they change again.
func (h *hub) show(ctx context.Context, t *topic, parts []part) error {
	if len(parts) == 0 {
		return nil
	}
	var drawn []livePart
	var err error
	if over := h.d.turns.await(ctx, t.key.tenant, func() { drawn, err = drawParts(ctx, parts) }); over != nil || err != nil {
		return cmp.Or(over, err)
	}
	t.take(drawn)
	return nil
}

func drawParts(ctx context.Context, parts []part) ([]livePart, error) {
	drawn := make([]livePart, len(parts))
	for i, p := range parts {
		var b bytes.Buffer
		if err := p.page.Render(ctx, &b); err != nil {
			return nil, err
		}
		drawn[i] = livePart{name: p.name, html: b.Bytes()}
	}
	return drawn, nil
}

// take notifies the streams if anything has changed.
func (t *topic) take(drawn []livePart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := false
	for _, d := range drawn {
		changed = t.put(d) || changed
	}
	if changed {
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// put reports whether the part is new or has changed.
func (t *topic) put(d livePart) bool {
	for i := range t.parts {
		p := &t.parts[i]
		if p.name != d.name {
			continue
		}
		if bytes.Equal(p.html, d.html) {
			return false
		}
		t.version++
		p.html, p.version = d.html, t.version
		return true
	}
	t.version++
	d.version = t.version
	t.parts = append(t.parts, d)
	return true
}

// since returns the parts that changed after a version, the current version, and a channel that is
// closed at the next one.
func (t *topic) since(version int64) (parts []livePart, now int64, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.parts {
		if p.version > version {
			parts = append(parts, p)
		}
	}
	return parts, t.version, t.changed
}

// watch ends streams whose sessions have ended, until there are no streams.
func (h *hub) watch() {
	ticks := time.NewTicker(liveEvery)
	defer ticks.Stop()
	known := time.Now()
	for range ticks.C {
		open := h.open()
		if len(open) == 0 {
			return
		}
		looks := make([]tenants.SessionLook, len(open))
		for i, s := range open {
			looks[i] = tenants.SessionLook{Session: s.session, Tenant: s.tenant}
		}
		ctx, cancel := context.WithTimeout(context.Background(), liveCheck)
		holding, err := h.d.Store.SessionsThatHold(ctx, looks)
		cancel()
		if err == nil {
			known = time.Now()
		} else if time.Since(known) < liveUnknown {
			continue
		}
		for i, s := range open {
			if err != nil || !holding[looks[i]] {
				s.end()
			}
		}
	}
}

// open returns the current streams. If there are none, the calling watch must end.
func (h *hub) open() []*openPage {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watching = len(h.streams) > 0
	open := make([]*openPage, 0, len(h.streams))
	for s := range h.streams {
		open = append(open, s)
	}
	return open
}

// eventWriter writes server-sent events. It keeps its first error.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

func (e *eventWriter) write(text string) {
	if e.err == nil {
		_ = e.control.SetWriteDeadline(time.Now().Add(liveWrite))
		_, e.err = e.w.Write([]byte(text))
	}
}

// event writes one event; each line of the text is a line of its data.
func (e *eventWriter) event(name string, text []byte) {
	var b strings.Builder
	b.WriteString("event: " + name + "\n")
	for line := range strings.SplitSeq(strings.ReplaceAll(string(text), "\r", " "), "\n") {
		b.WriteString("data: " + line + "\n")
	}
	b.WriteString("\n")
	e.write(b.String())
}

// later tells the browser to connect again after a time.
func (e *eventWriter) later(after time.Duration) {
	e.write("event: full\nretry: " + itoa(after.Milliseconds()) + "\ndata:\n\n")
}

func (e *eventWriter) comment(text string) { e.write(": " + text + "\n\n") }

func (e *eventWriter) flush() {
	if e.err == nil {
		e.err = e.control.Flush()
	}
}

// recentWithin is how long a page waits for recent decisions of all instances.
const recentWithin = time.Second

// recent returns recent decisions of the visit's tenant.
func (d *dashboard) recent(ctx context.Context, tenant uuid.UUID, q recent.Query) recent.List {
	ctx, cancel := context.WithTimeout(ctx, recentWithin)
	defer cancel()
	return d.Recent.List(ctx, tenant, q)
}
