package bench

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/migrations"
	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
	"automation/watchdog"
)

const (
	proxyKey    = "the-key-of-this-bench"
	proxySecret = "a key of thirty-two bytes to test"
)

// doorway is the built service, in a process of its own, before boxes of a provider that it does not work on: what is measured
// is the way in.
type doorway struct {
	address string
	pid     int
	paths   []string // of the proxy into each box
}

// openDoorway starts the service with boxes that run at url.
func openDoorway(b *testing.B, url string, boxes int) *doorway {
	b.Helper()
	dir := b.TempDir()
	program := filepath.Join(dir, "automation")
	run(b, "go", "build", "-o", program, "../../cmd/automation")
	d := &doorway{paths: runningBoxes(b, filepath.Join(dir, "data"), url, boxes)}
	serve := exec.CommandContext(b.Context(), program, "serve")
	serve.Cancel = func() error { return serve.Process.Signal(syscall.SIGTERM) }
	serve.Env = []string{
		"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "AUTOMATION_DATA_DIR=" + filepath.Join(dir, "data"), "AUTOMATION_LISTEN=127.0.0.1:0",
		"AUTOMATION_METRICS_LISTEN=", "AUTOMATION_LOCAL_API_KEY=" + proxyKey, "AUTOMATION_SANDBOX_BACKEND=process",
		"AUTOMATION_SECRET_KEY=" + base64.StdEncoding.EncodeToString([]byte(proxySecret)[:32]),
	}
	stderr, err := serve.StderrPipe()
	require.NoError(b, err)
	require.NoError(b, serve.Start())
	serving := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				serving <- line.Address
			}
		}
		_ = serve.Wait()
	}()
	b.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	select {
	case d.address = <-serving:
	case <-ended:
		b.Fatal("the service does not start")
	}
	d.pid = serve.Process.Pid
	return d
}

// runningBoxes makes a database in which boxes of the local user's conversations run at url, and returns the paths into them.
func runningBoxes(b *testing.B, data, url string, boxes int) (paths []string) {
	b.Helper()
	require.NoError(b, os.MkdirAll(data, 0o700))
	dsn := "sqlite:" + filepath.Join(data, "automation.db")
	require.NoError(b, migrations.Up(b.Context(), dsn))
	store, err := models.Open(b.Context(), dsn, models.WithKeys([]byte(proxySecret)[:32]))
	require.NoError(b, err)
	defer func() { require.NoError(b, store.Close()) }()
	org := uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-org"))
	place := models.Place{Backend: "runtime-api"}
	for range boxes {
		runtime, _, err := store.OpenRuntime(b.Context(), models.Runtime{OrgID: org, UserID: org, ConversationID: uuid.New(), Backend: place.Backend}, "bench")
		require.NoError(b, err)
		require.NoError(b, store.RecordIdentity(b.Context(), models.Identity{
			SandboxID: runtime.Box.ID, Kind: models.IdentityBox, ProviderID: runtime.Box.ID.String(), URL: url, SessionKey: "inner", SeenAt: store.Now(),
		}))
		paths = append(paths, "/api/automation/v1/sandboxes/"+runtime.Box.ID.String()+"/proxy")
	}
	claims, err := store.ClaimBoxes(b.Context(), place, boxes, time.Minute, time.Minute)
	require.NoError(b, err)
	running := models.SeenRunning
	for _, c := range claims {
		_, err := store.RecordStep(b.Context(), models.Step{
			BoxID: c.Box.ID, Token: c.Token, Generation: c.Generation, Name: "bench", Observed: &running, Woke: true, Release: true,
		})
		require.NoError(b, err)
	}
	return paths
}

// box is an agent server that answers everything and takes WebSockets, which stay open and are silent.
func box(b *testing.B) *httptest.Server {
	b.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = w.Write([]byte(`{"status":"ready"}`))
			return
		}
		conn, rest, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = rest.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rest.Flush()
		_, _ = io.Copy(io.Discard, conn)
	}))
	b.Cleanup(s.Close)
	return s
}

// quantile is the q-th part of what requests took, sorted.
func quantile(all []time.Duration, q float64) time.Duration {
	slices.Sort(all)
	return all[int(float64(len(all)-1)*q)]
}

// BenchmarkProxyAdds is what the proxy adds to a GET on a running box (issue 8: under 3 ms at the median; the Python registry 40
// to 48 ms).
func BenchmarkProxyAdds(b *testing.B) {
	inner := box(b)
	d := openDoorway(b, inner.URL, 1)
	client := &http.Client{Transport: &http.Transport{}}
	b.Cleanup(client.CloseIdleConnections)
	get := func(address string) time.Duration {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, address, http.NoBody)
		require.NoError(b, err)
		r.Header.Set("Authorization", "Bearer "+proxyKey)
		began := time.Now()
		answer, err := client.Do(r)
		require.NoError(b, err)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(b, err)
		require.NoError(b, answer.Body.Close())
		require.Equal(b, http.StatusOK, answer.StatusCode)
		return time.Since(began)
	}
	through := "http://" + d.address + d.paths[0] + "/api/x"
	get(through) // the first one attaches
	var direct, proxied []time.Duration
	for b.Loop() {
		direct = append(direct, get(inner.URL+"/api/x"))
		proxied = append(proxied, get(through))
	}
	milliseconds(b, quantile(proxied, 0.5)-quantile(direct, 0.5), "ms-added/median")
	milliseconds(b, quantile(proxied, 0.95)-quantile(direct, 0.95), "ms-added/p95")
}

// BenchmarkProxyHolds1000WebSockets is the memory that the service needs more for a thousand open WebSockets (issue 8: under 80
// MiB), all into one box and each into its own.
func BenchmarkProxyHolds1000WebSockets(b *testing.B) {
	const sockets = 1000
	for _, boxes := range []int{1, sockets} {
		b.Run(fmt.Sprintf("boxes=%d", boxes), func(b *testing.B) {
			d := openDoorway(b, box(b).URL, boxes)
			var more int
			for b.Loop() {
				before := resident(b, d.pid)
				ends := make([]net.Conn, sockets)
				var dialing sync.WaitGroup
				free := make(chan struct{}, 32)
				for i := range ends {
					free <- struct{}{}
					dialing.Go(func() {
						defer func() { <-free }()
						ends[i] = d.dial(b, d.paths[i%boxes])
					})
				}
				dialing.Wait()
				more = resident(b, d.pid) - before
				for _, conn := range ends {
					require.NotNil(b, conn)
					require.NoError(b, conn.Close())
				}
			}
			b.ReportMetric(float64(more)/(1<<20), "MiB")
		})
	}
}

// dial opens a WebSocket through the proxy; nil: it was not taken.
func (d *doorway) dial(b *testing.B, path string) net.Conn {
	b.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(b.Context(), "tcp", d.address)
	if err != nil {
		b.Error(err)
		return nil
	}
	_, _ = io.WriteString(conn, strings.Join([]string{
		"GET " + path + "/sockets/x HTTP/1.1", "Host: " + d.address, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Authorization: Bearer " + proxyKey, "", "",
	}, "\r\n"))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		b.Error("not taken", err, answer)
		return nil
	}
	return conn
}

// resident is the memory of a process, in bytes.
func resident(b *testing.B, pid int) int {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kilobytes, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(b, err)
	return kilobytes << 10
}

// BenchmarkAccessOfASuspendedBox is what we add to the start of a box until somebody is in it (issue 8: within 150 ms of what the
// engine itself needs), with a hundred callers at once: the provider here starts it at once, and its server answers at once.
func BenchmarkAccessOfASuspendedBox(b *testing.B) {
	const callers = 100
	store, fake, access, settled := openAccess(b)
	runtime, _, err := store.OpenRuntime(b.Context(), models.Runtime{OrgID: uuid.New(), UserID: uuid.New(), ConversationID: uuid.New(), Backend: "fake"}, "bench")
	require.NoError(b, err)
	id := runtime.Box.ID
	enter := func() {
		read, err := store.Sandbox(context.Background(), uuid.Nil, id)
		if err != nil {
			b.Error(err)
			return
		}
		_, leave, err := access.Enter(context.Background(), read, "user:bench")
		if err != nil {
			b.Error(err)
			return
		}
		leave()
	}
	enter()
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		resumes := fake.Count("Resume")
		access.Release(id)
		require.NoError(b, store.Order(b.Context(), id, models.WantSuspended, "bench", "bench"))
		settled(id, models.SeenSuspended)
		b.StartTimer()
		began := time.Now()
		var all sync.WaitGroup
		for range callers {
			all.Go(enter)
		}
		all.Wait()
		took = append(took, time.Since(began))
		require.Equal(b, resumes+1, fake.Count("Resume"), "one start")
	}
	milliseconds(b, quantile(took, 0.5), "ms/median")
}

// openAccess is store, settler and access over a provider in memory. settled wakes the settler and waits until a box is seen so.
func openAccess(b *testing.B) (store *models.Store, fake *sandboxtest.Fake, access *sandbox.Access, settled func(uuid.UUID, models.Observed)) {
	b.Helper()
	dsn := "sqlite:" + filepath.Join(b.TempDir(), "bench.db")
	require.NoError(b, migrations.Up(b.Context(), dsn))
	store, err := models.Open(b.Context(), dsn, models.WithKeys([]byte(proxySecret)[:32]))
	require.NoError(b, err)
	fake = sandboxtest.NewFake(sandboxtest.Quirks{Suspend: sandbox.SuspendDisk})
	fake.Agents = sandboxtest.NewAgentServer(b)
	place, nudge := models.Place{Backend: "fake"}, loop.NewNudge()
	wake := func(models.Place) { nudge.Wake() }
	access = sandbox.NewAccess(sandbox.AccessConfig{Store: store, HTTP: fake.Agents.Client(), Wake: wake})
	recorded := make(chan struct{}, 1)
	settler := sandbox.NewSettler(sandbox.SettlerConfig{
		Store: store, Backends: map[string]*sandbox.Decorated{place.Backend: sandbox.Decorate(fake, sandbox.Limits{})}, Deployment: uuid.New(),
		Settings: sandbox.Settings{Export: sandbox.ExportOff, Reclaim: sandbox.ReclaimOff}, HTTP: fake.Agents.Client(), Wake: wake,
		Recorded: func(id uuid.UUID) {
			access.Changed(id)
			select {
			case recorded <- struct{}{}:
			default:
			}
		},
	})
	w := &watchdog.Watchdog{
		Store: store, Backends: map[models.Place]sandbox.Backend{place: fake}, Settler: settler, Log: slog.New(slog.DiscardHandler),
		SettleNudges: map[models.Place]loop.Nudge{place: nudge},
	}
	duties, err := loop.New(slog.New(slog.DiscardHandler), w.Settle(place))
	require.NoError(b, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); duties.Run(ctx) }()
	b.Cleanup(func() {
		access.Close()
		stop()
		<-ended
		require.NoError(b, store.Close())
	})
	settled = func(id uuid.UUID, want models.Observed) {
		nudge.Wake()
		for {
			box, err := store.Sandbox(b.Context(), uuid.Nil, id)
			require.NoError(b, err)
			if box.Observed == want && box.NextStepAt == nil {
				return
			}
			select {
			case <-recorded:
			case <-b.Context().Done():
				b.Fatal("the box does not come to rest")
			}
		}
	}
	return store, fake, access, settled
}
