package docker

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/tests/dockerengine"
)

// The calls that faults meet.
var (
	starts   = regexp.MustCompile(`^/containers/[^/]+/start$`)
	creates  = regexp.MustCompile(`^/containers/create$`)
	looks    = regexp.MustCompile(`^/containers/[^/]+/json$`)
	removals = regexp.MustCompile(`^/containers/[^/]+$`)
	pulls    = regexp.MustCompile(`^/images/create$`)
)

// nothingLeft requires that neither the engine nor the data root has anything of the box.
func (r *rig) nothingLeft(id uuid.UUID) {
	r.Helper()
	v, err := r.look(r.ctx(), id)
	require.NoError(r, err)
	require.True(r, v.missing, "no container is left")
	left, err := filepath.Glob(filepath.Join(r.dir, id.String()+"*"))
	require.NoError(r, err)
	require.Empty(r, left)
}

func (r *rig) specOf(id uuid.UUID) sandbox.Spec {
	return sandbox.Spec{Label: sandbox.Label{Deployment: r.deployment, WorkspaceID: id}}
}

func TestAPortThatIsTakenMeanwhileIsTriedAgain(t *testing.T) { // BR-16
	r, s := openSpoilt(t, &fault{method: "POST", path: starts, times: 2, status: 500,
		message: "driver failed programming external connectivity: Bind for 127.0.0.1:32768 failed: port is already allocated"})
	ref := r.create()
	require.Equal(t, 2, s.count("DELETE /containers/"), "what did not start is removed")
	containers, err := r.containers(r.ctx(), r.deployment)
	require.NoError(t, err)
	require.Len(t, containers, 1)
	require.NoError(t, r.Suspend(r.ctx(), ref, nothing))

	s.mu.Lock()
	s.faults = []*fault{{method: "POST", path: starts, times: 2, status: 500, message: "listen tcp4 127.0.0.1:32768: bind: address already in use"}}
	s.mu.Unlock()
	require.NoError(t, r.Resume(r.ctx(), ref, nothing))
	require.Equal(t, 2, s.count("DELETE /containers/"), "one that holds a disk is not removed for it")

	s.mu.Lock()
	s.faults = []*fault{{method: "POST", path: starts, times: 100, status: 500, message: "port is already allocated"}}
	s.mu.Unlock()
	id := uuid.Must(uuid.NewV7())
	require.ErrorIs(t, r.Create(r.ctx(), r.specOf(id), nothing), ErrPortTaken)
	r.nothingLeft(id)
}

func TestARemovalInProgressIsWaitedFor(t *testing.T) { // BR-17
	t.Run("the name is free again after a while", func(t *testing.T) {
		r, s := openSpoilt(t)
		ref := r.create()
		require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
		removing := func(body map[string]any) {
			state, _ := body["State"].(map[string]any)
			state["Status"], state["Running"] = "removing", false
		}
		s.mu.Lock()
		s.faults = []*fault{
			{method: "GET", path: looks, times: 3, edit: removing},
			{method: "GET", path: looks, times: 1, status: 404, message: "No such container: x"},
			{method: "POST", path: creates, times: 1, status: 409, message: `Conflict. The container name "/x" is already in use by container "y".`},
		}
		s.mu.Unlock()
		require.NoError(t, r.Resume(r.ctx(), ref, nothing))
		require.Equal(t, models.SeenRunning, r.inspect(ref).State)
	})
	t.Run("a delete that somebody else has begun is done when the container is gone", func(t *testing.T) {
		r, _ := openSpoilt(t, &fault{method: "DELETE", path: removals, times: 1, status: 409, pass: true,
			message: "removal of container x is already in progress"})
		ref := r.create()
		require.NoError(t, r.Delete(r.ctx(), ref))
		r.nothingLeft(ref.WorkspaceID)
	})
	t.Run("and busy, not failed, while it is not", func(t *testing.T) {
		stuck := &fault{method: "DELETE", path: removals, times: 1, status: 409, message: "removal of container x is already in progress"}
		r, _ := openSpoilt(t, stuck)
		ref := r.create()
		require.ErrorIs(t, r.Delete(r.ctx(), ref), sandbox.ErrBusy)
		require.Equal(t, models.SeenDeleting, r.inspect(ref).State)
		require.ErrorIs(t, r.Resume(r.ctx(), ref, nothing), sandbox.ErrBusy, "what is being deleted does not start")
		require.NoError(t, r.Delete(r.ctx(), ref))
	})
}

func TestAnAbsentImageIsRefusedForCertain(t *testing.T) {
	t.Run("never pulled", func(t *testing.T) {
		r := open(t, func(c *Config) { c.Image = "automation-test:absent" })
		id := uuid.Must(uuid.NewV7())
		err := r.Create(r.ctx(), r.specOf(id), nothing)
		require.ErrorIs(t, err, ErrImageAbsent)
		require.ErrorIs(t, err, sandbox.ErrInvalid, "nothing was made")
		require.ErrorContains(t, err, "automation-test:absent")
		r.nothingLeft(id)
	})
	t.Run("pulled in vain", func(t *testing.T) {
		s := spoil(t, &fault{method: "POST", path: pulls, times: 1, status: 500, message: "no such registry"})
		r := open(t, func(c *Config) { c.Host, c.Image, c.Pull = s.url, "automation-test:absent", PullMissing })
		err := r.Create(r.ctx(), r.specOf(uuid.Must(uuid.NewV7())), nothing)
		require.ErrorIs(t, err, ErrImageAbsent)
		require.ErrorContains(t, err, "no such registry")
	})
}

func TestAFullDiskUsesUpAQuota(t *testing.T) {
	r, _ := openSpoilt(t, &fault{method: "POST", path: creates, times: 1, status: 500, message: "mkdir /var/lib/docker/overlay2/x: no space left on device"})
	id := uuid.Must(uuid.NewV7())
	err := r.Create(r.ctx(), r.specOf(id), nothing)
	require.ErrorIs(t, err, ErrDiskFull)
	require.ErrorIs(t, err, sandbox.ErrQuota)
	r.nothingLeft(id)
}

func TestANameOfSomebodyElseIsLeftAlone(t *testing.T) {
	r := open(t)
	id := uuid.Must(uuid.NewV7())
	foreign, err := r.engine.ContainerCreate(r.ctx(), client.ContainerCreateOptions{
		Name: nameOf(id), Config: &container.Config{Image: r.config.Image},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := r.engine.ContainerRemove(r.ctx(), foreign.ID, client.ContainerRemoveOptions{Force: true})
		require.NoError(t, err)
	})
	err = r.Create(r.ctx(), r.specOf(id), nothing)
	require.ErrorIs(t, err, ErrNameTaken)
	require.ErrorIs(t, err, sandbox.ErrInvalid)
	require.ErrorIs(t, r.Delete(r.ctx(), sandbox.Ref{WorkspaceID: id}), ErrNameTaken)
	answer, err := r.engine.ContainerInspect(r.ctx(), foreign.ID, client.ContainerInspectOptions{})
	require.NoError(t, err)
	require.Equal(t, container.StateCreated, answer.Container.State.Status)
}

func TestAnEngineThatIsDownSaysNothingAboutBoxes(t *testing.T) {
	r := open(t)
	ref := r.create()
	down := r.config
	down.Host, down.DataDir = "unix://"+filepath.Join(t.TempDir(), "nobody.sock"), r.dir
	b, err := New(down, Options{})
	require.NoError(t, err, "boxes wait for their engine")
	defer b.Close()
	require.Equal(t, r.Location(), b.Location())
	_, err = b.Inspect(t.Context(), ref)
	require.ErrorIs(t, err, ErrEngineDown)
	require.NotErrorIs(t, err, sandbox.ErrGone, "could not ask is never gone")
	require.ErrorIs(t, b.Suspend(t.Context(), ref, nothing), ErrEngineDown)
	for _, err := range b.List(t.Context(), sandbox.Label{Deployment: r.deployment}) {
		require.ErrorIs(t, err, ErrEngineDown)
	}
	id := uuid.Must(uuid.NewV7())
	err = b.Create(t.Context(), r.specOf(id), nothing)
	require.ErrorIs(t, err, ErrEngineDown)
	require.ErrorIs(t, err, sandbox.ErrNotMade)
	r.nothingLeft(id)
	require.ErrorIs(t, b.Delete(t.Context(), ref), ErrEngineDown)
	require.NoError(t, r.Delete(r.ctx(), ref), "and is finished when the engine is back")

	down.DataDir = t.TempDir()
	_, err = New(down, Options{})
	require.ErrorIs(t, err, ErrEngineDown, "where no engine was ever served, the address is wrong")
	require.ErrorContains(t, err, "AUTOMATION_DOCKER_HOST")
}

func TestWhatADeadContainerHeldIsStartedAnew(t *testing.T) {
	r, s := openSpoilt(t)
	ref := r.create()
	dead := func(body map[string]any) {
		state, _ := body["State"].(map[string]any)
		state["Status"], state["Running"], state["Dead"] = "dead", false, true
	}
	s.mu.Lock()
	s.faults = []*fault{{method: "GET", path: looks, times: 2, edit: dead}}
	s.mu.Unlock()
	require.Equal(t, models.SeenFailed, r.inspect(ref).State)
	require.NoError(t, r.Resume(r.ctx(), ref, nothing))
	require.Equal(t, models.SeenRunning, r.inspect(ref).State)
}

func TestAServerThatEndsBeforeItServesIsAFailure(t *testing.T) {
	image := &dockerengine.Image{Name: "automation-test:broken", Entrypoint: []string{"/broken"}, Files: map[string]string{"/broken": "/bin/busybox"}}
	r := open(t, func(c *Config) { c.Image = image.Make(t) })
	id := uuid.Must(uuid.NewV7())
	require.NoError(t, r.Create(r.ctx(), r.specOf(id), nothing))
	o := r.inspect(sandbox.Ref{WorkspaceID: id})
	require.Equal(t, models.SeenFailed, o.State)
	require.Contains(t, o.Detail, "ended with 127")
	require.Contains(t, o.Detail, "applet not found", "its last words")
}

func TestABoxGoesOnWithoutItsContainerOrItsRecord(t *testing.T) {
	r := open(t)
	ref := r.create()
	key := r.inspect(ref).Identity.Key
	require.NoError(t, r.remove(r.ctx(), ref.WorkspaceID))
	require.Equal(t, models.SeenSuspended, r.inspect(ref).State, "its files are there")
	require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
	require.NoError(t, r.Resume(r.ctx(), ref, nothing))
	require.Equal(t, key, r.inspect(ref).Identity.Key, "the same keys, whatever the container")

	require.NoError(t, os.Remove(r.recordPath(ref.WorkspaceID)))
	o := r.inspect(ref)
	require.Equal(t, key, o.Identity.Key)
	require.Equal(t, r.deployment, o.Label.Deployment)
	require.NoError(t, r.Delete(r.ctx(), ref))
	_, err := r.Inspect(r.ctx(), ref)
	require.ErrorIs(t, err, sandbox.ErrGone)
}

func TestABoxIsHardened(t *testing.T) {
	r := open(t)
	ref := r.create()
	answer, err := r.engine.ContainerInspect(r.ctx(), nameOf(ref.WorkspaceID), client.ContainerInspectOptions{})
	require.NoError(t, err)
	c, host := answer.Container.Config, answer.Container.HostConfig
	require.NotContains(t, []string{"", "0", "root", "0:0"}, c.User)
	require.Equal(t, []string{"ALL"}, host.CapDrop)
	require.Equal(t, []string{"no-new-privileges"}, host.SecurityOpt)
	require.Equal(t, int64(256<<20), host.Memory)
	require.Equal(t, int64(128), *host.PidsLimit)
	require.Positive(t, host.NanoCPUs)
	require.True(t, *host.Init)
	require.False(t, host.AutoRemove, "D10: what is on its own disk outlives a stop")
	require.Contains(t, host.ExtraHosts, "host.docker.internal:host-gateway")
	require.Equal(t, 10, *c.StopTimeout)
	for _, bindings := range answer.Container.NetworkSettings.Ports {
		for _, b := range bindings {
			require.True(t, b.HostIP.IsLoopback())
		}
	}
	require.Equal(t, r.deployment.String(), c.Labels[labelDeployment])
	require.Equal(t, ref.WorkspaceID.String(), c.Labels[labelWorkspace])
	require.NotEmpty(t, c.Labels[labelIncarnation])
	for _, word := range c.Env {
		require.NotContains(t, word, "AUTOMATION_LOCAL_API_KEY", "S0-010")
	}
}

func TestTheVersionOfTheAPIIsNegotiated(t *testing.T) {
	r := open(t)
	answer, err := r.engine.ServerVersion(r.ctx(), client.ServerVersionOptions{})
	require.NoError(t, err)
	require.Equal(t, answer.APIVersion, r.engine.ClientVersion())
}

func TestTwentyStartAtOnce(t *testing.T) { // BR-16
	r := open(t)
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() { errs <- r.Create(r.ctx(), r.specOf(uuid.Must(uuid.NewV7())), nothing) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	containers, err := r.containers(r.ctx(), r.deployment)
	require.NoError(t, err)
	require.Len(t, containers, 20)
}

func TestWatchTellsWhatHappensToOurContainersOnly(t *testing.T) {
	r, other := open(t), open(t)
	mine, foreign := r.create(), other.create()
	heard := make(chan sandbox.Change, 16)
	ctx := r.ctx()
	go func() {
		for change, err := range r.Watch(ctx, r.deployment) {
			if err != nil {
				return
			}
			heard <- change
		}
	}()
	require.Zero(t, <-heard, "nothing is missed from now on")
	require.NoError(t, other.Suspend(ctx, foreign, nothing))
	require.NoError(t, r.Suspend(ctx, mine, nothing))
	require.NoError(t, r.Resume(ctx, mine, nothing))
	for _, want := range []models.Observed{models.SeenSuspended, models.SeenRunning} {
		select {
		case change := <-heard:
			require.Equal(t, sandbox.Change{WorkspaceID: mine.WorkspaceID, State: want}, change)
		case <-time.After(20 * time.Second):
			t.Fatalf("not told of %s", want)
		}
	}
}
