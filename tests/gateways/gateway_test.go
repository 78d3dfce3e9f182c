package gateways

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// A gateway is a running program, with its own relay to Weir and its own application.
type gateway struct {
	recipe  *recipe
	address string
	plain   string // the same program without Weir, for comparison
	inner   string // a second address of the same program, for gateways that need one
	dir     string
	relay   *relay
	app     *app
	replace map[string]string
	beside  []string // a command that the gateway needs, and that listens on inner
	log     output
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// anotherEnd returns a key of the same length that does not exist.
func anotherEnd(key string) string {
	end := "0"
	if strings.HasSuffix(key, end) {
		end = "1"
	}
	return key[:len(key)-1] + end
}

func freePort() string { return strconv.Itoa(20000 + int(lastPort.Add(1)%10000)) }

// lastPort makes each port differ from the previous ones, because a gateway cannot use one twice.
var lastPort = func() *atomic.Uint32 {
	p := new(atomic.Uint32)
	p.Store(rand.Uint32N(10000))
	return p
}()

// nobody is the user of gateways if the tests run as root. Some gateways refuse to run as root.
const nobody = 65534

// startGateway starts a gateway with the configuration of its page. If patient, timeouts are so
// long that a slow machine does not turn a test of decisions into one of failures.
func startGateway(t testing.TB, w *world, r *recipe, failOpen, patient bool) *gateway {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-"+r.name+"-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	g := &gateway{recipe: r, address: freeAddress(t), plain: freeAddress(t), inner: freeAddress(t), dir: dir, app: newApp(t)}
	g.relay = newRelay(t, strings.TrimPrefix(w.url, "http://"))
	g.relay.keys = map[string]string{"gateway": w.keys["gateway"], "exhausted": w.keys["exhausted"], "unknown": anotherEnd(w.keys["other"])}
	_, port, err := net.SplitHostPort(g.address)
	require.NoError(t, err)
	g.replace = map[string]string{pageKey: w.keys["gateway"]}
	host, weirPort, _ := net.SplitHostPort(g.relay.address)
	_, appPort, _ := net.SplitHostPort(g.app.address)
	if r.hostAndPort {
		g.replace[`"8080"`], g.replace[`"9000"`] = strconv.Quote(weirPort), strconv.Quote(appPort)
	} else {
		g.replace[pageWeir], g.replace[pageApp] = host+":"+weirPort, host+":"+appPort
	}
	for from, to := range r.listen {
		g.replace[from] = strings.NewReplacer("INNER", g.inner, "ADDRESS", g.address, "PORT", port).Replace(to)
	}
	for from, to := range r.paths {
		g.replace[from] = filepath.Join(dir, to)
	}
	if patient {
		for from, to := range r.patient {
			g.replace[from] = to
		}
	}
	page := readPage(t, r.page())
	var changes [][2]string
	if r.route {
		require.NotEmpty(t, page.route, "%s.md creates no route", r.page())
		changes = page.byRoute
		g.replace[authorize+page.slug] = authorize + r.name
		for _, key := range []string{w.keys["gateway"], w.keys["exhausted"]} {
			w.call(key, http.MethodPut, "/v1/routes/"+r.name, page.route)
		}
	}
	if r.user {
		require.NotEmpty(t, page.byUser, "%s.md authenticates no users", r.page())
		changes = append(changes, page.byUser...)
	}
	if !failOpen {
		changes = append(changes, page.closed...)
	}
	replace := g.replace
	if r.secured != nil {
		replace = g.secure(t, w, page)
	}
	files := page.configured(t, changes, replace)
	args := r.arrange(g, files)
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	g.start(t, args)
	return g
}

// run starts a program of the gateway, as a user without rights.
func (g *gateway) run(t testing.TB, args []string) (ended chan struct{}) {
	t.Helper()
	cmd := exec.Command(find(t, args[0]), args[1:]...)
	cmd.Dir, cmd.Env = g.dir, []string{"HOME=" + g.dir, "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/usr/local/sbin", "TMPDIR=" + g.dir}
	cmd.Stdout, cmd.Stderr = &g.log, &g.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
	if os.Geteuid() == 0 {
		require.NoError(t, filepath.WalkDir(g.dir, func(path string, _ fs.DirEntry, err error) error {
			require.NoError(t, err)
			return os.Chown(path, nobody, nobody)
		}))
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	require.NoError(t, cmd.Start())
	ended = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the process group is our own
		<-ended
	})
	return ended
}

func (g *gateway) start(t testing.TB, args []string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", g.recipe.name, g.log.String())
		}
	})
	if g.beside != nil {
		g.run(t, g.beside)
		require.Eventually(t, func() bool {
			conn, err := net.Dial("tcp", g.inner)
			if err != nil {
				return false
			}
			_ = conn.Close()
			return true
		}, harness.Patience, harness.Tick, "%s does not start", g.beside[0])
	}
	ended := g.run(t, args)
	c := customer(t)
	require.Eventually(t, func() bool {
		select {
		case <-ended:
			return true
		default:
		}
		response, err := c.Get("http://" + g.address)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return !g.recipe.listensEarly || response.StatusCode != http.StatusNotFound
	}, harness.Patience, harness.Tick, "%s does not start", g.recipe.name)
	select {
	case <-ended:
		require.Fail(t, fmt.Sprintf("%s ended immediately: %s", g.recipe.name, g.log.String()))
	default:
	}
	g.relay.clear()
	g.app.take()
}

// find searches for a program, also in the directories for administrators.
func find(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/local/sbin", *builtPrograms) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, name)
		}
	}
	require.Fail(t, name+" is not installed. Run: scripts/dev.sh gateways")
	return ""
}
