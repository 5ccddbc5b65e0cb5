package report

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/shoenig/test/must"
)

// browser starts Chromium, or skips the test where there is none.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium here: scripts/deps installs Debian's")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1200, 900), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-quic", true), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}

// keep writes a picture where artefacts are kept: $MUSTER_ARTIFACTS, else the
// suite's folder.
func keep(t *testing.T, name string, content []byte) {
	t.Helper()
	dir := os.Getenv("MUSTER_ARTIFACTS")
	if dir == "" {
		dir = "../../e2e/artifacts"
	}
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
}

// The page in a real browser: on a desk, in the dark, on a narrow screen, seen
// without colour, and on paper. It loads nothing and logs nothing, every plot is
// drawn, and nothing is wider than the window.
func TestInABrowser(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	var html bytes.Buffer
	must.NoError(t, made(t, week()).HTML(&html))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/report" {
			w.WriteHeader(http.StatusNoContent) // the browser's own wish for an icon
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(html.Bytes())
	}))
	t.Cleanup(server.Close)
	var mu sync.Mutex
	var asked, said []string
	must.NoError(t, chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if u := e.Request.URL; u != server.URL+"/report" && u != server.URL+"/favicon.ico" && !strings.HasPrefix(u, "data:") { // the emulated eye's filter

				asked = append(asked, u)
			}
		case *runtime.EventConsoleAPICalled:
			said = append(said, string(e.Type))
		case *runtime.EventExceptionThrown:
			said = append(said, e.ExceptionDetails.Text)
		}
	}))
	// What the page is like: plots that are empty or that stick out, and the
	// contrast of its text.
	type looks struct{ Plots, Empty, Overflow, Contrast float64 }
	const look = `(() => {
		const plots = [...document.querySelectorAll("svg.plot")].map(s => s.getBoundingClientRect());
		const lum = c => { const [r, g, b] = c.match(/[\d.]+/g).slice(0, 3).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
		const style = getComputedStyle(document.body), a = lum(style.color), b = lum(style.backgroundColor);
		return {Plots: plots.length, Empty: plots.filter(r => r.width < 100 || r.height < 50).length,
			Overflow: Math.max(0, ...plots.map(r => r.right - innerWidth)),
			Contrast: (Math.max(a, b) + .05) / (Math.min(a, b) + .05)};
	})()`
	for _, c := range []struct {
		name          string
		width, height int64
		scheme        string
		deficiency    emulation.SetEmulatedVisionDeficiencyType
	}{
		{"report-desk.png", 1200, 900, "light", emulation.SetEmulatedVisionDeficiencyTypeNone},
		{"report-dark.png", 1200, 900, "dark", emulation.SetEmulatedVisionDeficiencyTypeNone},
		{"report-narrow.png", 390, 800, "light", emulation.SetEmulatedVisionDeficiencyTypeNone},
		{"report-grey.png", 1200, 900, "light", emulation.SetEmulatedVisionDeficiencyTypeAchromatopsia},
	} {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: c.scheme}}})
		must.NoError(t, err)
		_, err = chromedp.Call(ctx, emulation.SetEmulatedVisionDeficiency, emulation.SetEmulatedVisionDeficiencyParams{Type: c.deficiency})
		must.NoError(t, err)
		must.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(c.width, c.height), chromedp.Navigate(server.URL+"/report")))
		got, err := chromedp.Run(ctx, chromedp.Evaluate[looks](look))
		must.NoError(t, err)
		picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
		must.NoError(t, err)
		must.Eq(t, 8, got.Plots, must.Sprint(c.name))
		must.Eq(t, 0, got.Empty, must.Sprint(c.name))
		must.Eq(t, 0, got.Overflow, must.Sprint(c.name))
		must.Greater(t, 7, got.Contrast, must.Sprint(c.name)) // the stricter level of WCAG
		must.Greater(t, 10_000, len(picture), must.Sprint(c.name))
		keep(t, c.name, picture)
	}
	paper, err := chromedp.Run(ctx, chromedp.PrintToPDF())
	must.NoError(t, err)
	keep(t, "report.pdf", paper)
	mu.Lock()
	defer mu.Unlock()
	must.Eq(t, nil, asked)
	must.Eq(t, nil, said)
}
