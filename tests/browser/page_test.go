package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

const (
	desktopWidth, desktopHeight = 1280, 860
	phoneWidth, phoneHeight     = 390, 844

	// patience is how long a step waits for what it names. Tests that pass wait for little of it.
	patience = 20 * time.Second
	tick     = 20 * time.Millisecond
)

// page is one tab of one visitor.
type page struct {
	t      *testing.T
	s      *service
	ctx    context.Context
	watch  *watch
	scope  string // the text that within named, "" for the whole page
	width  int    // of the screen in pixels
	height int
	inert  bool // runs no scripts of its own
}

func newPage(t *testing.T, s *service) *page {
	t.Helper()
	p := &page{t: t, s: s, watch: newWatch(s.url)}
	ctx, cancel := chromedp.NewContext(chromium(), chromedp.WithNewBrowserContext(), chromedp.WithListener(p.watch.hear))
	p.ctx = ctx
	t.Cleanup(func() {
		p.finish()
		cancel()
	})
	p.must(chromedp.Do(ctx), "open a tab")
	call(p, network.Enable, network.EnableParams{})
	p.theme("light")
	p.desktop()
	return p
}

// call runs a command of the protocol.
func call[P, R any](p *page, command cdp.Command[P, R], params P) R {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	p.must(err, command.Method)
	return result
}

// eval returns the value of a JavaScript expression, which may be a promise.
func eval[T any](p *page, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// mustEval is eval of what cannot fail but by a fault of the test.
func mustEval[T any](p *page, expression string) T {
	p.t.Helper()
	value, err := eval[T](p, expression)
	p.must(err, expression)
	return value
}

func (p *page) must(err error, what string) {
	p.t.Helper()
	require.NoError(p.t, err, what)
}

// finish fails the test where the page had faults, and keeps a picture of a failure.
func (p *page) finish() {
	for _, fault := range p.watch.faults() {
		p.t.Error(fault)
	}
	if !p.t.Failed() || p.ctx.Err() != nil {
		return
	}
	file := filepath.Join(testenv.Root(), ".dev", "test", "browser", strings.ReplaceAll(p.t.Name(), "/", "-")+".png")
	p.t.Logf("at %s; the picture is %s", p.watch.url(), file)
	if err := p.write(file, true); err != nil {
		p.t.Logf("no picture: %v", err)
	}
}

// setCookie gives the page a cookie as the service would set it.
func (p *page) setCookie(name, value string) {
	p.t.Helper()
	yes := true
	call(p, network.SetCookie, network.SetCookieParams{
		Name: name, Value: value, URL: p.s.url, Path: "/", Secure: &yes, HTTPOnly: &yes, SameSite: network.CookieSameSiteLax,
	})
}

// open goes to a path, which must answer 200.
func (p *page) open(path string) *page {
	p.t.Helper()
	return p.openFor(path, 200)
}

// openFor goes to a path, which must answer with this status.
func (p *page) openFor(path string, status int) *page {
	p.t.Helper()
	p.watch.begin(status)
	require.Equal(p.t, status, p.visit(path), "status of %s", path)
	return p
}

// visit goes to a path and returns the status of the answer.
func (p *page) visit(path string) int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	p.must(chromedp.Do(ctx, chromedp.Navigate(p.s.url+path)), path)
	p.settle()
	return p.watch.status()
}

// allow says that a request may fail with these statuses.
func (p *page) allow(statuses ...int) *page {
	p.watch.allow(statuses...)
	return p
}

// settle returns when the page is loaded and does nothing that was asked of it any more.
func (p *page) settle() {
	p.t.Helper()
	p.eventually(func() error {
		if p.watch.busy() {
			return fmt.Errorf("the page %s is still loading", p.watch.url())
		}
		quiet, err := eval[bool](p, p.quiet())
		switch {
		case err != nil: // it went elsewhere at this moment
			return err
		case !quiet || p.watch.busy():
			return fmt.Errorf("the page %s is still at work", p.watch.url())
		}
		return nil
	})
}

// quiet is a JavaScript expression of whether the page is at rest, once what is due at this moment
// is done.
func (p *page) quiet() string {
	if p.inert {
		return `document.readyState === "complete"`
	}
	return `new Promise(done => setTimeout(() => done(document.readyState === "complete" &&
		!document.querySelector(".htmx-request, .htmx-swapping, .htmx-settling"))))`
}

// eventually calls try until it has no error.
func (p *page) eventually(try func() error) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	timer := time.NewTicker(tick)
	defer timer.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(p.t, err, "at %s", p.watch.url())
		}
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			require.NoError(p.t, p.ctx.Err(), "the tab is gone")
		}
	}
}

// theme sets what the system is said to prefer: "light" or "dark". Motion is always reduced, so
// that nothing is looked at half way.
func (p *page) theme(scheme string) *page {
	p.t.Helper()
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	return p
}

// phone makes the screen that of a phone held upright.
func (p *page) phone() *page {
	p.t.Helper()
	p.width, p.height = phoneWidth, phoneHeight
	p.must(p.screen(p.height), "be a phone")
	return p
}

// desktop makes the screen that of a computer.
func (p *page) desktop() *page {
	p.t.Helper()
	p.width, p.height = desktopWidth, desktopHeight
	p.must(p.screen(p.height), "be a computer")
	return p
}

// screen makes the screen so high.
func (p *page) screen(height int) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if p.width == phoneWidth {
		return chromedp.Do(ctx, chromedp.EmulateViewport(int64(p.width), int64(height), chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulateScale(1)))
	}
	return chromedp.Do(ctx, chromedp.EmulateViewport(int64(p.width), int64(height)))
}

// write makes a picture of the page: of all of it, or of what the screen shows.
func (p *page) write(file string, whole bool) error {
	if whole { // a screen that is as high as the page, so that what is bound to the screen is as high, too
		height, err := eval[int](p, "document.documentElement.scrollHeight")
		if err == nil {
			err = p.screen(max(height, p.height))
		}
		if err != nil {
			return err
		}
		defer func() { _ = p.screen(p.height) }() // the tab is gone if this fails
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	picture, err := chromedp.Call(ctx, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{Format: cdppage.CaptureScreenshotFormatPng})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, picture.Data, 0o644)
}

// withoutScripts makes the browser run none of the page's scripts. What the test asks of the page
// still works.
func (p *page) withoutScripts() *page {
	p.t.Helper()
	p.inert = true
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	return p
}

// quote is a JavaScript string.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(b)
}
