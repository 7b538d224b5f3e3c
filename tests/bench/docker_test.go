package bench

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/loop"
	"automation/migrations"
	"automation/models"
	"automation/sandbox"
	"automation/sandbox/backend"
	"automation/tests/dockerengine"
	"automation/watchdog"
)

// evictTTL is short: the boxes really have to be idle for it, for their agent servers are asked.
const evictTTL = 2 * time.Second

// evictions is what the service evicts with, on a real engine: store, settler and duties, without its HTTP API.
type evictions struct {
	store      *models.Store
	place      models.Place
	nudge      loop.Nudge
	idle       loop.Loop
	engine     *client.Client
	deployment uuid.UUID
}

func openEvictions(b *testing.B, image string) *evictions {
	b.Helper()
	e := &evictions{engine: dockerengine.Client(b), deployment: uuid.New(), nudge: loop.NewNudge()}
	dir := b.TempDir()
	dsn := "sqlite:" + filepath.Join(dir, "bench.db")
	require.NoError(b, migrations.Up(b.Context(), dsn))
	var err error
	e.store, err = models.Open(b.Context(), dsn, models.WithKeys([]byte("a key of thirty-two bytes to test")[:32]))
	require.NoError(b, err)
	docker, err := backend.New("docker", backend.Deps{DataDir: dir, Executable: os.Args[0], Now: e.store.Now}, map[string]string{
		"AUTOMATION_DOCKER_HOST": dockerengine.Host(b), "AUTOMATION_DOCKER_IMAGE": image, "AUTOMATION_DOCKER_PULL": "never",
		"AUTOMATION_DOCKER_MEMORY_BYTES": "67108864",
	})
	require.NoError(b, err)
	location, err := backend.LocationOf(docker, dir)
	require.NoError(b, err)
	e.place = models.Place{Backend: "docker", Location: location}
	decorated := sandbox.Decorate(docker, sandbox.Limits{PerSecond: 500, Burst: 500, Parallel: watchdog.PlacedWorkers})
	settler := sandbox.NewSettler(sandbox.SettlerConfig{
		Store: e.store, Backends: map[string]*sandbox.Decorated{"docker": decorated}, Deployment: e.deployment,
		Settings: sandbox.Settings{IdleTTL: evictTTL, Export: sandbox.ExportOff}, Wake: func(models.Place) { e.nudge.Wake() },
	})
	w := &watchdog.Watchdog{
		Store: e.store, Config: config.Config{Dispatch: config.Dispatch{IdleTTL: evictTTL}}, Deployment: e.deployment,
		Backends: map[models.Place]sandbox.Backend{e.place: decorated}, Settler: settler, Log: slog.New(slog.DiscardHandler),
		SettleNudges: map[models.Place]loop.Nudge{e.place: e.nudge},
	}
	e.idle = w.Idle(e.place)
	duties, err := loop.New(slog.New(slog.DiscardHandler), w.Settle(e.place))
	require.NoError(b, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); duties.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		<-ended
		for o, err := range docker.List(context.Background(), sandbox.Label{Deployment: e.deployment}) {
			require.NoError(b, err)
			require.NoError(b, docker.Delete(context.Background(), sandbox.Ref{WorkspaceID: o.Label.WorkspaceID}))
		}
		require.NoError(b, e.store.Close())
	})
	return e
}

// all waits until every box of the organization is seen so.
func (e *evictions) all(b *testing.B, org uuid.UUID, want models.Observed, n int) {
	b.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(5 * time.Minute)
	for {
		counts, err := e.store.CountSandboxes(b.Context(), org)
		require.NoError(b, err)
		if counts["docker"][want] == n {
			return
		}
		select {
		case <-look.C:
		case <-deadline:
			b.Fatalf("not all %s: %v", want, counts)
		}
	}
}

// BenchmarkEvict50 is one pass of the idle duty over fifty idle conversations on a real engine, until every container has
// stopped: those that honour SIGTERM, and those that ignore it and are killed after the grace of ten seconds (issue 8: under
// 2.5 s and 25 s; the Python registry took 10.8 s and 514 s).
func BenchmarkEvict50(b *testing.B) {
	const boxes = 50
	for name, image := range map[string]func(testing.TB, string) string{"honouring": dockerengine.Bare, "ignoring": dockerengine.Stubborn} {
		b.Run(name, func(b *testing.B) {
			e := openEvictions(b, image(b, "../.."))
			org := uuid.New()
			ids := make([]uuid.UUID, boxes)
			for i := range ids {
				ids[i] = uuid.New()
			}
			var took time.Duration
			for b.Loop() {
				b.StopTimer()
				for _, id := range ids {
					_, _, err := e.store.OpenRuntime(b.Context(), models.Runtime{
						OrgID: org, UserID: org, ConversationID: id, Backend: e.place.Backend, Location: e.place.Location, SessionKey: "k", SecretKey: "k",
					}, "bench")
					require.NoError(b, err)
				}
				e.nudge.Wake()
				e.all(b, org, models.SeenRunning, boxes)
				_, err := e.idle.Pass(b.Context()) // it looks for a whole TTL before it evicts
				require.NoError(b, err)
				<-time.After(evictTTL + evictTTL/2)
				b.StartTimer()
				began := time.Now()
				n, err := e.idle.Pass(b.Context())
				require.NoError(b, err)
				require.Equal(b, boxes, n)
				e.all(b, org, models.SeenSuspended, boxes)
				took = time.Since(began)
			}
			b.ReportMetric(took.Seconds(), "s/pass")
		})
	}
}
