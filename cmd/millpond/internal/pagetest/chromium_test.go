package pagetest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const (
	patience = 2 * time.Minute
	// requireChromium is set by `make test-page`: a missing program fails the test.
	requireChromium = "MILLPOND_REQUIRE_CHROMIUM"
)

// startChromium starts a Chromium that knows no host but the loopback address, and ends it with the
// test. Without Chromium the test is skipped.
func startChromium(t *testing.T) context.Context {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil && os.Getenv(requireChromium) == "" {
		t.Skip("needs Debian's package chromium: make test-page")
	}
	require.NoError(t, err)
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("lang", "en-GB"),
		chromedp.Env("TZ=Europe/Berlin"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root with it
	}
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	return ctx
}

// tab is a tab of a browser with its own cookies. Its end fails the test if the page has asked
// another host, opened a dialog, or written an error to the console.
type tab struct {
	t    *testing.T
	ctx  context.Context
	site string // without a slash at the end

	mu        sync.Mutex
	faults    []string
	tolerated []string
	clicks    int
}

// look is how a tab shows pages.
type look struct {
	name   string
	width  int64
	scheme string // of colours
}

var looks = []look{
	{"wide-light", 1280, "light"},
	{"wide-dark", 1280, "dark"},
	{"narrow-light", 390, "light"},
	{"narrow-dark", 390, "dark"},
}

// openTab opens a tab for a site.
func openTab(t *testing.T, chromium context.Context, site string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium, chromedp.WithNewBrowserContext())
	b := &tab{t: t, ctx: ctx, site: site}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		assert.Empty(t, b.faults)
		cancel()
	})
	require.NoError(t, chromedp.Do(ctx))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	require.NoError(t, chromedp.Listen(ctx, b.hear))
	b.dress(looks[0])
	return b
}

// call runs a command of the DevTools protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	result, err := chromedp.Call(b.ctx, command, params)
	require.NoError(b.t, err)
	return result
}

// hear notes faults of a page.
func (b *tab) hear(event any) {
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		b.fault("dialog: " + e.Message)
		go func() {
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog,
				page.HandleJavaScriptDialogParams{Accept: false})
		}()
	case *page.EventWindowOpen:
		b.fault("window: " + e.URL)
	case *runtime.EventExceptionThrown:
		b.fault(fmt.Sprintf("exception: %s %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		b.fault(fmt.Sprintf("console.%s", e.Type))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.fault(fmt.Sprintf("log: %s %s", e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		at, err := url.Parse(e.Request.URL)
		if err != nil || at.Scheme+"://"+at.Host != b.site {
			b.fault("request: " + e.Request.URL)
		}
	}
}

func (b *tab) fault(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, known := range b.tolerated {
		if strings.Contains(text, known) {
			return
		}
	}
	if len(b.faults) < 20 {
		b.faults = append(b.faults, text)
	}
}

// tolerate says that faults with this text are part of the test.
func (b *tab) tolerate(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tolerated = append(b.tolerated, text)
}

// dress sets the width and the colours.
func (b *tab) dress(l look) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: l.width, Height: 800, DeviceScaleFactor: 1,
	})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: l.scheme},
			{Name: "prefers-reduced-motion", Value: "reduce"},
		},
	})
}

// visit opens a page and waits until it is loaded. It asks again where Chromium does not answer, as
// once on a busy machine while the page before was about to reload itself.
func (b *tab) visit(path string) {
	b.t.Helper()
	testbroker.WaitFor(b.t, path+" to load", patience, func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		err := chromedp.Do(ctx, chromedp.Navigate(b.site+path))
		if errors.Is(err, context.DeadlineExceeded) && b.ctx.Err() == nil {
			return false
		}
		require.NoError(b.t, err)
		return true
	})
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	var value T
	testbroker.WaitFor(b.t, "the page to answer", patience, func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		var err error
		value, err = chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
		if err != nil && isNavigation(err) {
			return false
		}
		require.NoError(b.t, err, expression)
		return true
	})
	return value
}

// isNavigation reports whether an expression failed because the page gave way to another one.
func isNavigation(err error) bool {
	for _, text := range []string{"navigated", "context was destroyed", "Cannot find context"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// await waits until an expression in the page is true.
func (b *tab) await(expression string) {
	b.t.Helper()
	testbroker.WaitFor(b.t, expression, patience, func() bool {
		return eval[bool](b, "!!("+expression+")")
	})
}

// text returns the text of the page as a person sees it.
func (b *tab) text() string {
	b.t.Helper()
	return eval[string](b, `document.body ? document.body.innerText : ""`)
}

// see waits until the page shows texts.
func (b *tab) see(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		limit := time.Now().Add(patience)
		for !strings.Contains(b.text(), text) {
			if time.Now().After(limit) {
				b.shot("missing")
				require.Contains(b.t, b.text(), text)
			}
			b.pause()
		}
	}
}

// shot keeps a picture of the whole page.
func (b *tab) shot(name string) []byte {
	b.t.Helper()
	var picture []byte
	testbroker.WaitFor(b.t, "a picture", patience, func() bool { // on a busy machine some never come
		ctx, cancel := context.WithTimeout(b.ctx, patience/4)
		defer cancel()
		var err error
		picture, err = chromedp.Run(ctx, chromedp.FullScreenshot(100))
		again := err != nil && strings.Contains(err.Error(), "0 width") // it just loads again
		if again || errors.Is(err, context.DeadlineExceeded) && b.ctx.Err() == nil {
			return false
		}
		require.NoError(b.t, err)
		return true
	})
	if pictures != "" {
		name = strings.ReplaceAll(b.t.Name()+"-"+name, "/", "-") + ".png"
		require.NoError(b.t, os.MkdirAll(pictures, 0o755))
		require.NoError(b.t, os.WriteFile(filepath.Join(pictures, name), picture, 0o644))
	}
	return picture
}

// keep writes a picture of the tab to the documents, if the tests run with -update.
func (b *tab) keep(file string) {
	b.t.Helper()
	if !*update {
		return
	}
	picture := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{
		Format: page.CaptureScreenshotFormatPng,
	})
	require.Less(b.t, len(picture.Data), 200<<10, file)
	require.NoError(b.t, os.WriteFile(filepath.Join("../../../../docs", file), picture.Data, 0o644))
}

// hide covers the tab with another window, or shows it again.
func (b *tab) hide(hidden bool) {
	b.t.Helper()
	state := browser.WindowStateNormal
	if hidden {
		state = browser.WindowStateMinimized
	}
	window := call(b, browser.GetWindowForTarget, browser.GetWindowForTargetParams{})
	call(b, browser.SetWindowBounds, browser.SetWindowBoundsParams{
		WindowID: window.WindowID, Bounds: &browser.Bounds{WindowState: state},
	})
	b.await(fmt.Sprintf("document.hidden === %v", hidden))
}

// pause waits between two looks at a page.
func (b *tab) pause() { time.Sleep(100 * time.Millisecond) }
