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

	// patience is the timeout of a step. Passing tests wait much less.
	patience = 2 * time.Minute
	tick     = 20 * time.Millisecond
)

// page is a tab of a visitor.
type page struct {
	t      *testing.T
	s      *service
	ctx    context.Context
	watch  *watch
	scope  string // the text of within; "" for the entire page
	width  int    // of the screen in pixels
	height int
	inert  bool // the page's scripts do not run
}

func newPage(t *testing.T, s *service) *page {
	t.Helper()
	p := &page{t: t, s: s, watch: newWatch(s.url)}
	ctx, cancel := chromedp.NewContext(chromium(), chromedp.WithNewBrowserContext(), chromedp.WithListener(p.watch.onEvent))
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

// call sends a command of the browser's protocol.
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

// mustEval is eval of an expression that fails only because of an error in the test.
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

// finish fails the test if the page had faults, and saves a screenshot of a failure.
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

// setCookie sets a cookie on the page, as the service would.
func (p *page) setCookie(name, value string) {
	p.t.Helper()
	yes := true
	call(p, network.SetCookie, network.SetCookieParams{
		Name: name, Value: value, URL: p.s.url, Path: "/", Secure: &yes, HTTPOnly: &yes, SameSite: network.CookieSameSiteLax,
	})
}

// open opens a path, which must have the status 200.
func (p *page) open(path string) *page {
	p.t.Helper()
	return p.openFor(path, 200)
}

// openFor opens a path, which must have this status.
func (p *page) openFor(path string, status int) *page {
	p.t.Helper()
	p.watch.begin(status)
	require.Equal(p.t, status, p.visit(path), "status of %s", path)
	return p
}

// visit opens a path and returns its status.
func (p *page) visit(path string) int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	p.must(chromedp.Do(ctx, chromedp.Navigate(p.s.url+path)), path)
	p.settle()
	return p.watch.status()
}

// allow permits requests to fail with these statuses.
func (p *page) allow(statuses ...int) *page {
	p.watch.allow(statuses...)
	return p
}

// settle returns when the page is loaded and has finished its work.
func (p *page) settle() {
	p.t.Helper()
	p.eventually(func() error {
		if p.watch.busy() {
			return fmt.Errorf("the page %s is still loading", p.watch.url())
		}
		quiet, err := eval[bool](p, p.quiet())
		switch {
		case err != nil: // it navigated at this moment
			return err
		case !quiet || p.watch.busy():
			return fmt.Errorf("the page %s is still busy", p.watch.url())
		}
		return nil
	})
}

// quiet is a JavaScript expression for whether the page is idle, after the tasks that are due now.
func (p *page) quiet() string {
	if p.inert {
		return `document.readyState === "complete"`
	}
	return `new Promise(done => setTimeout(() => done(document.readyState === "complete" &&
		!document.querySelector(".htmx-request, .htmx-swapping, .htmx-settling"))))`
}

// eventually calls try until it returns no error.
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
			require.NoError(p.t, p.ctx.Err(), "the tab was closed")
		}
	}
}

// theme sets the preferred color scheme of the system: "light" or "dark". Motion is always reduced,
// so that no animation is in progress during checks.
func (p *page) theme(scheme string) *page {
	p.t.Helper()
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	return p
}

// phone sets the screen size of a phone in portrait orientation.
func (p *page) phone() *page {
	p.t.Helper()
	p.width, p.height = phoneWidth, phoneHeight
	p.must(p.screen(p.height), "set the screen of a phone")
	return p
}

// desktop sets the screen size of a computer.
func (p *page) desktop() *page {
	p.t.Helper()
	p.width, p.height = desktopWidth, desktopHeight
	p.must(p.screen(p.height), "set the screen of a computer")
	return p
}

// screen sets the height of the screen.
func (p *page) screen(height int) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if p.width == phoneWidth {
		return chromedp.Do(ctx, chromedp.EmulateViewport(int64(p.width), int64(height), chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulateScale(1)))
	}
	return chromedp.Do(ctx, chromedp.EmulateViewport(int64(p.width), int64(height)))
}

// write saves a screenshot of the page: all of it, or only the visible part.
func (p *page) write(file string, full bool) error {
	if full { // a screen as high as the page, so that elements with the height of the screen are as high, too
		height, err := eval[int](p, "document.documentElement.scrollHeight")
		if err == nil {
			err = p.screen(max(height, p.height))
		}
		if err != nil {
			return err
		}
		defer func() { _ = p.screen(p.height) }() // fails if the tab was closed
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

// withoutScripts disables the page's scripts. Expressions of the test still run.
func (p *page) withoutScripts() *page {
	p.t.Helper()
	p.inert = true
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	return p
}

// quote returns a JavaScript string.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot happen for a string
	}
	return string(b)
}
