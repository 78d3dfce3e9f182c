package browser

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
)

// watch observes a tab: its requests, and its faults.
type watch struct {
	host string // the only host of requests

	mu         sync.Mutex
	address    string
	answered   int // the status of the last document
	navigating bool
	loading    bool
	allowed    []int
	wrong      []string
	requests   map[network.RequestID]*request
	order      []*request
}

// request is a request of a page.
type request struct {
	url    string
	kind   network.ResourceType
	status int
	bytes  int // the size on the wire: headers and compressed body
	header network.Headers
}

func newWatch(host string) *watch {
	return &watch{host: host, requests: map[network.RequestID]*request{}}
}

// begin clears the requests. The next document may have this status.
func (w *watch) begin(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.order, w.answered = nil, 0
	w.allowed = append(w.allowed, status)
}

func (w *watch) allow(statuses ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allowed = append(w.allowed, statuses...)
}

func (w *watch) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.navigating || w.loading
}

func (w *watch) status() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answered
}

func (w *watch) url() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.address
}

// faults returns the faults since the last call.
func (w *watch) faults() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrong := w.wrong
	w.wrong = nil
	return wrong
}

// loaded returns the requests since the page was opened.
func (w *watch) loaded() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	loaded := make([]request, len(w.order))
	for i, r := range w.order {
		loaded[i] = *r
	}
	return loaded
}

// onEvent is called for each event of the tab. No page has frames, so all events are of the page.
func (w *watch) onEvent(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := event.(type) {
	case *cdppage.EventFrameRequestedNavigation:
		w.navigating = true
	case *cdppage.EventFrameStartedLoading:
		w.navigating, w.loading = false, true
	case *cdppage.EventFrameStoppedLoading:
		w.navigating, w.loading = false, false
	case *cdppage.EventFrameNavigated:
		w.address = e.Frame.URL
	case *cdppage.EventNavigatedWithinDocument:
		w.address = e.URL
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		w.fault("a script failed: %s", text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			var words []string
			for _, arg := range e.Args {
				words = append(words, string(arg.Value)+arg.Description)
			}
			text := strings.TrimPrefix(strings.Join(words, " "), `"`) // values are JSON
			// A page that is left while it loads a part, such as a preview, aborts that request.
			// htmx logs this as an error. A request that fails is also logged as htmx:sendError.
			if !strings.HasPrefix(text, "htmx:sendAbort") && !strings.HasPrefix(text, "htmx:afterRequest") {
				w.fault("an error on the console: %s", text)
			}
		}
	case *log.EventEntryAdded:
		// Errors of the network are reported by onNetworkEvent.
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			w.fault("an error of the browser: %s (%s)", e.Entry.Text, e.Entry.URL)
		}
	default:
		w.onNetworkEvent(event)
	}
}

func (w *watch) onNetworkEvent(event any) {
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		url := e.Request.URL
		if !strings.HasPrefix(url, w.host+"/") && !strings.HasPrefix(url, "data:") && !strings.HasPrefix(url, "blob:") && !strings.HasPrefix(url, "about:") {
			w.fault("a request to another host: %s", url)
		}
		r := &request{url: url, kind: e.Type}
		w.requests[e.RequestID] = r
		w.order = append(w.order, r)
	case *network.EventResponseReceived:
		status := int(e.Response.Status)
		if r := w.requests[e.RequestID]; r != nil {
			r.status, r.header = status, e.Response.Headers
		}
		if e.Type == network.ResourceTypeDocument {
			w.answered = status
		}
		// An invalid form is answered with 422 and its messages.
		if status >= 400 && status != 422 && !slices.Contains(w.allowed, status) {
			w.fault("%d for %s", status, e.Response.URL)
		}
	case *network.EventLoadingFinished:
		if r := w.requests[e.RequestID]; r != nil {
			r.bytes = int(e.EncodedDataLength)
		}
	case *network.EventLoadingFailed:
		// Requests in progress are canceled when the page is left.
		if !e.Canceled && e.ErrorText != "net::ERR_ABORTED" {
			url := ""
			if r := w.requests[e.RequestID]; r != nil {
				url = r.url
			}
			w.fault("a request failed: %s %s %s", e.ErrorText, e.BlockedReason, url)
		}
	}
}

func (w *watch) fault(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}
