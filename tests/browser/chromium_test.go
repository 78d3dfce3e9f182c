package browser

import (
	"context"
	"os"
	"os/exec"
	"sync"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// chromium is the one browser of all tests in the package. Each page has its own browser context,
// isolated from the others.
var chromium = sync.OnceValue(func() context.Context {
	t := harness.Shared()
	profile, err := os.MkdirTemp("", "weir-chromium-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(profile) })
	ctx, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(findChromium()),
		chromedp.UserDataDir(profile),
		chromedp.Flag("headless", "new"),
		chromedp.NoSandbox, // Chromium does not start as root with a sandbox, and it shows only our own pages
		chromedp.DisableGPU,
		chromedp.NoFirstRun,
		chromedp.NoDefaultBrowserCheck,
		chromedp.WindowSize(desktopWidth, desktopHeight),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-extensions", true),
		chromedp.Flag("disable-dev-shm-usage", true), // /dev/shm is small in containers
		chromedp.Flag("disable-renderer-backgrounding", true),
		chromedp.Flag("disable-background-timer-throttling", true),
		chromedp.Flag("disable-backgrounding-occluded-windows", true),
		chromedp.Flag("force-color-profile", "srgb"),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("password-store", "basic"),
		chromedp.Flag("lang", "en-GB"),
		chromedp.Flag("site-per-process", true), // as every browser with a user interface
		// Each costs a process, or keeps a page to which nobody returns: a fifth of all time.
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess,BackForwardCache,PaintHolding"),
	)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx), "Chromium does not start")
	return ctx
})

// findChromium returns the path of the browser: WEIR_TEST_CHROMIUM, or the first one that is
// installed. The one without a user interface takes the least time.
func findChromium() string {
	if program := os.Getenv("WEIR_TEST_CHROMIUM"); program != "" {
		return program
	}
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if program, err := exec.LookPath(name); err == nil {
			return program
		}
	}
	t := harness.Shared()
	t.Fatalf("tests of pages need Chromium: run `scripts/dev.sh browser`, or set WEIR_TEST_CHROMIUM")
	return ""
}
