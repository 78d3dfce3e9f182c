package dashboard

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"weir/internal/recent"
	"weir/internal/tenants"
)

// Bounds on pages that are kept up to date.
const (
	maxStreams        = 256 // of this process
	maxTenantStreams  = 96
	maxPersonStreams  = 24 // with all their sessions
	maxSessionStreams = 6  // of one session: a browser opens no more to one host over HTTP/1.1
	liveEvery         = time.Second
	liveHeartbeat     = 15 * time.Second // shorter than what proxies take for silence
	liveWrite         = 10 * time.Second // for one write: a browser that stands still is given up
	liveCheck         = 5 * time.Second  // bounds one question about sessions
	// liveUnknown is for how long pages go on while Postgres cannot say whether they may.
	liveUnknown = 30 * time.Second
)

// hub keeps open pages up to date by server-sent events. What pages have in common is worked out
// once a second, however many look, and only while somebody does. A stream ends with its
// session, with the membership in its tenant, and with the process.
type hub struct {
	d *dashboard

	mu       sync.Mutex
	streams  map[*openPage]struct{}
	topics   map[topicKey]*topic
	watching bool
}

func newHub(d *dashboard) *hub {
	return &hub{d: d, streams: map[*openPage]struct{}{}, topics: map[topicKey]*topic{}}
}

// topicKey names what streams have in common.
type topicKey struct {
	tenant uuid.UUID
	name   string // of the page with what it was asked for
}

// part is one piece of a page, by the name under which the page waits for it.
type part struct {
	name string
	page templ.Component
}

// source works a topic's parts out, as of now. It may leave out those that have not changed.
type source func(ctx context.Context, tick int) ([]part, error)

// topic is the present state of what some streams show.
type topic struct {
	key  topicKey
	stop context.CancelFunc

	mu        sync.Mutex
	listeners int // guarded by the hub's lock
	version   int64
	parts     []livePart
	changed   chan struct{} // closed with the next change
}

type livePart struct {
	name    string
	html    []byte
	version int64
}

// openPage is one page that is kept up to date.
type openPage struct {
	session, person, tenant uuid.UUID

	over chan struct{} // closed when the session does not hold any more
	end  func()
}

// errStreams: more pages are kept up to date than there is room for.
var errStreams = errors.New("too many live pages are open")

// stream makes a handler of one that keeps a page of a tenant up to date. Unlike a page it takes no
// message about what was just done: that is the page's.
func (d *dashboard) stream(handle func(http.ResponseWriter, *http.Request, *visit) error) http.HandlerFunc {
	return d.person(func(w http.ResponseWriter, r *http.Request, v *visit) error {
		if v.session.Current == nil {
			return tenants.ErrNotFound
		}
		return handle(w, r, v)
	})
}

// live serves a topic to a page that is open.
func (d *dashboard) live(w http.ResponseWriter, r *http.Request, v *visit, name string, from source) error {
	s, t, err := d.hub.join(v, topicKey{v.actor().TenantID(), name}, from)
	if err != nil {
		return err
	}
	defer d.hub.leave(s, t)
	leavePlace(r.Context()) // it is no work while nothing happens
	out := &eventWriter{w: w, control: http.NewResponseController(w)}
	// The server's bounds are those of a request that is answered at once. Where they cannot be
	// lifted, the browser connects again.
	_ = out.control.SetReadDeadline(time.Time{})
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // for proxies that would collect it
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
			out.event("over", nil)
			out.flush()
			return nil
		case <-d.Stopping:
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
	return nil // the browser is gone
}

// join takes a stream in. Leave with it.
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
	if stopped(h.d.Stopping) || len(h.streams) >= maxStreams ||
		session >= maxSessionStreams || person >= maxPersonStreams || tenant >= maxTenantStreams {
		return nil, nil, errStreams
	}
	over := make(chan struct{})
	s := &openPage{session: v.session.ID, person: v.session.PersonID, tenant: key.tenant, over: over, end: sync.OnceFunc(func() { close(over) })}
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

func (h *hub) leave(s *openPage, t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
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

// run works a topic out once a second, until nobody listens.
func (h *hub) run(ctx context.Context, t *topic, from source) {
	ticks := time.NewTicker(liveEvery)
	defer ticks.Stop()
	for tick := 0; ; tick++ {
		parts, err := from(ctx, tick)
		if err == nil {
			err = t.take(ctx, parts)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, tenants.ErrUnavailable) { // that is logged often enough
			h.d.Logger.Error("cannot update a live page", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// take draws parts, and tells the streams if anything looks different now.
func (t *topic) take(ctx context.Context, parts []part) error {
	drawn := make([]livePart, len(parts))
	for i, p := range parts {
		var b bytes.Buffer
		if err := p.page.Render(ctx, &b); err != nil {
			return err
		}
		drawn[i] = livePart{name: p.name, html: b.Bytes()}
	}
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
	return nil
}

// put reports whether the part is new or different.
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

// since returns the parts that changed after a version, the version that this is, and what is
// closed when there is a later one.
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

// watch ends streams whose sessions do not hold any more, until there are none.
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

// open returns the streams there are. With none, the watch that asks is to end.
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

// eventWriter writes server-sent events. Its first error stays.
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

func (e *eventWriter) comment(text string) { e.write(": " + text + "\n\n") }

func (e *eventWriter) flush() {
	if e.err == nil {
		e.err = e.control.Flush()
	}
}

// leavePlace gives back the place among the requests that are worked on, before they end.
func leavePlace(ctx context.Context) {
	if leave, ok := ctx.Value(placeKey{}).(func()); ok {
		leave()
	}
}

type placeKey struct{}

// recentWithin bounds how long a page waits for what instances decided lately.
const recentWithin = time.Second

// recent returns recent decisions of the visit's tenant.
func (d *dashboard) recent(ctx context.Context, tenant uuid.UUID, q recent.Query) recent.List {
	ctx, cancel := context.WithTimeout(ctx, recentWithin)
	defer cancel()
	return d.Recent.List(ctx, tenant, q)
}
