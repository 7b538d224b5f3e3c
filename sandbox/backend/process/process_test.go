package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestExercise(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		sandboxtest.Exercise(t, func(t *testing.T) sandboxtest.Subject {
			return sandboxtest.Subject{Backend: open(t, hold).Backend, Within: within}
		})
	})
}

func TestACommandThatDoubleForksIsStoppedContinuedAndKilled(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		r := open(t, hold)
		ref, x := r.create()
		first := r.shows(ref, models.SeenRunning).Identity
		counter, size := r.daemon(x, first)
		for range 2 {
			require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
			require.Equal(t, models.SeenSuspended, r.shows(ref, models.SeenSuspended).State)
			stopped := size()
			require.Never(t, func() bool { return size() != stopped }, 150*time.Millisecond, 10*time.Millisecond)
			require.True(t, counter.alive(), "memory is kept (S0-125)")
			require.NoError(t, r.Resume(r.ctx(), ref, nothing))
			require.Equal(t, first, r.shows(ref, models.SeenRunning).Identity, "nothing about the box has changed")
			r.grows(size)
		}
		facts := r.facts(x)
		require.Equal(t, hold == HoldCgroup, facts.Cgroup != "")
		require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
		require.NoError(t, r.Delete(r.ctx(), ref), "killed where it stands")
		for _, p := range []proc{counter, facts.Server, facts.Supervisor} {
			require.False(t, p.alive())
		}
		require.NoDirExists(t, x.dir)
		if facts.Cgroup != "" {
			require.NoDirExists(t, facts.Cgroup)
		}
	})
}

func TestAProgramThatForksAllTheTimeDoesNotEscape(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		r := open(t, hold)
		ref, x := r.create()
		path := filepath.Join(x.home(), "hops")
		r.run(r.shows(ref, models.SeenRunning).Identity, "hop", path)
		size := func() int64 {
			info, err := os.Stat(path)
			require.NoError(t, err)
			return info.Size()
		}
		for range 3 {
			r.grows(size)
			require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
			stopped := size()
			require.Never(t, func() bool { return size() != stopped }, 50*time.Millisecond, 10*time.Millisecond)
			require.Equal(t, models.SeenSuspended, r.shows(ref, models.SeenSuspended).State)
			require.NoError(t, r.Resume(r.ctx(), ref, nothing))
		}
		r.grows(size)
		require.NoError(t, r.Delete(r.ctx(), ref))
		r.empty(x)
	})
}

func TestAnAgentServerThatDiedAloneLeavesASuspendedBox(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		r := open(t, hold)
		ref, x := r.create()
		before := r.shows(ref, models.SeenRunning).Identity
		counter, size := r.daemon(x, before)
		for round := range 3 {
			require.NoError(t, r.facts(x).Server.signal(syscall.SIGKILL))
			o := r.shows(ref, models.SeenSuspended)
			require.Empty(t, o.Identity.URL)
			r.ends(counter) // the rest of the box goes with its server
			r.empty(x)
			require.Positive(t, size(), "the disk is kept")
			require.NoError(t, os.WriteFile(filepath.Join(x.home(), strconv.Itoa(round)), nil, 0o600))

			require.NoError(t, r.Resume(r.ctx(), ref, nothing))
			after := r.shows(ref, models.SeenRunning).Identity
			require.Equal(t, before.ProviderID, after.ProviderID)
			require.Equal(t, before.Key, after.Key)
			for kept := range round + 1 {
				require.FileExists(t, filepath.Join(x.home(), strconv.Itoa(kept)))
			}
			require.NoError(t, ready(r.ctx(), after.URL))
			counter, size = r.daemon(x, after)
		}
	})
}

func TestATreeWhoseSupervisorDiedIsFoundAndKilled(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		r := open(t, hold)
		ref, x := r.create()
		facts := r.facts(x)
		counter, size := r.daemon(x, r.shows(ref, models.SeenRunning).Identity)
		require.NoError(t, facts.Supervisor.signal(syscall.SIGKILL))
		r.ends(facts.Supervisor)
		require.True(t, counter.alive(), "nobody is left to end it")
		require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
		r.shows(ref, models.SeenSuspended)
		stopped := size()
		require.Never(t, func() bool { return size() != stopped }, 150*time.Millisecond, 10*time.Millisecond)
		require.NoError(t, r.Delete(r.ctx(), ref))
		require.False(t, counter.alive())
		require.False(t, facts.Server.alive())
		r.empty(x)
	})
}

func TestABoxThatRemovedItsControlDirectoryIsEndedAndDeleted(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		r := open(t, hold)
		ref, x := r.create()
		counter, _ := r.daemon(x, r.shows(ref, models.SeenRunning).Identity)
		require.NoError(t, os.RemoveAll(x.control("")))
		require.NoError(t, r.Delete(r.ctx(), ref))
		require.False(t, counter.alive())
		require.NoDirExists(t, x.dir)
	})
}

func TestABoxIsMissingOnlyWithoutADirectory(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		r := open(t, hold)
		ref, x := r.create()
		require.NoError(t, r.Suspend(r.ctx(), ref, nothing))

		// Another start of the machine: the facts of the old one are void, whatever runs under their numbers now.
		facts := r.facts(x)
		stale := facts
		stale.BootID = uuid.NewString()
		require.NoError(t, x.writeStart(stale))
		r.shows(ref, models.SeenSuspended)
		require.False(t, facts.Server.alive(), "what is found of it is ended, not left beside the next start")
		require.NoError(t, r.Resume(r.ctx(), ref, nothing))
		r.shows(ref, models.SeenRunning)

		require.NoError(t, r.facts(x).Server.signal(syscall.SIGKILL))
		r.shows(ref, models.SeenSuspended)
		require.NoError(t, os.RemoveAll(x.dir))
		_, err := r.Inspect(r.ctx(), ref)
		require.ErrorIs(t, err, sandbox.ErrGone)
		require.ErrorIs(t, r.Resume(r.ctx(), ref, nothing), sandbox.ErrGone)
		require.ErrorIs(t, r.Suspend(r.ctx(), ref, nothing), sandbox.ErrGone)
		require.ErrorIs(t, r.Delete(r.ctx(), ref), sandbox.ErrGone)
	})
}

func TestADirectoryThatCannotBeLookedAtIsNotGone(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref := sandbox.Ref{WorkspaceID: uuid.New()}
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, ref.WorkspaceID.String()), nil, 0o600))
	t.Cleanup(func() { _ = os.Remove(filepath.Join(r.dir, ref.WorkspaceID.String())) })
	_, err := r.Inspect(r.ctx(), ref)
	require.Error(t, err)
	require.NotErrorIs(t, err, sandbox.ErrGone)
	require.NoError(t, os.Remove(filepath.Join(r.dir, ref.WorkspaceID.String())))
}

func TestFactsAreComparedBeforeASignal(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s, ok := readStatus(cmd.Process.Pid)
	require.True(t, ok)
	earlier := proc{PID: s.PID, Started: s.Started - 1}
	require.False(t, earlier.alive())
	require.NoError(t, earlier.signal(syscall.SIGKILL))
	require.True(t, s.proc.alive(), "the pid belongs to another process now")

	// The same through a whole box: its facts name a pid that is now somebody else's.
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	facts := r.facts(x)
	require.NoError(t, facts.Supervisor.signal(syscall.SIGKILL))
	require.NoError(t, facts.Server.signal(syscall.SIGKILL))
	r.ends(facts.Server)
	facts.Server, facts.Supervisor = earlier, earlier
	require.NoError(t, x.writeStart(facts))
	r.shows(ref, models.SeenSuspended)
	require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
	require.NoError(t, r.Delete(r.ctx(), ref))
	require.True(t, s.proc.alive())

	for _, forbidden := range []int{-1, 0, 1, os.Getpid()} {
		require.Error(t, proc{PID: forbidden}.signal(syscall.SIGKILL))
	}
}

func TestTheCgroupInTheFactsIsNotBelieved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), cgroupFolder, uuid.NewString())
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.kill"), nil, 0o600))
	hold := cgroupHold{dir: dir, id: uuid.MustParse(filepath.Base(dir))}
	require.NoError(t, hold.kill(t.Context()))
	require.Error(t, hold.stop(t.Context()))
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.kill"))
	require.NoError(t, err)
	require.Empty(t, text)
	require.False(t, cgroupHold{dir: "/sys/fs/cgroup", id: hold.id}.valid())
}

func TestS0_010_NoCredentialOfTheServiceOrOfAProviderIsInABox(t *testing.T) {
	const secret = "planted-secret-8c1f"
	for _, name := range []string{"AUTOMATION_SERVICE_KEY", "AUTOMATION_DB_PASS", "DIGITALOCEAN_TOKEN", "E2B_API_KEY", "HOME", "XDG_CONFIG_HOME", "HTTPS_PROXY"} {
		t.Setenv(name, secret)
	}
	r := openIn(t, HoldAuto, t.TempDir(), map[string]string{"GREETING": "hello"})
	ref, x := r.create()
	i := r.shows(ref, models.SeenRunning).Identity
	counter, _ := r.daemon(x, i)
	facts := r.facts(x)
	for name, p := range map[string]proc{"supervisor": facts.Supervisor, "agent server": facts.Server, "command": counter} {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/environ")
		require.NoError(t, err)
		require.NotContains(t, string(text), secret, name)
		words := strings.Split(string(text), "\x00")
		require.Contains(t, words, x.marker(), name)
		require.Contains(t, words, "HOME="+x.home(), name)
		require.Contains(t, words, "GREETING=hello", name)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(facts.Supervisor.PID) + "/environ")
	require.NoError(t, err)
	require.NotContains(t, string(text), i.Key, "the session key is the agent server's alone")
	require.Len(t, i.Key, 64)
	other, _ := r.create()
	require.NotEqual(t, i.Key, r.shows(other, models.SeenRunning).Identity.Key, "each box has its own")
}

// runService is a service that makes a box and then waits for its end.
func runService(args []string) int {
	program, err := os.Executable()
	if err != nil {
		return exitCode(err)
	}
	b, err := New(Config{Hold: args[0], Path: "/usr/bin:/bin"}, Options{DataDir: args[1], Executable: program})
	if err != nil {
		return exitCode(err)
	}
	label := sandbox.Label{Deployment: uuid.MustParse(args[2]), WorkspaceID: uuid.MustParse(args[3])}
	if err := b.Create(context.Background(), sandbox.Spec{Label: label}, nothing); err != nil {
		return exitCode(err)
	}
	fmt.Println("created")
	select {}
}

func TestTheEndOfTheServiceLeavesBoxesRunning(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			r := open(t, hold)
			ref := sandbox.Ref{WorkspaceID: uuid.New()}
			cmd := exec.Command(r.executable, "service", hold, filepath.Dir(r.dir), r.deployment.String(), ref.WorkspaceID.String())
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			said := make([]byte, len("created\n"))
			_, err = io.ReadFull(out, said)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(-cmd.Process.Pid, signal), "the whole group, as a terminal does")
			rest, err := io.ReadAll(out)
			require.NoError(t, err, "no box holds a pipe of the service open")
			require.Empty(t, rest)
			require.Error(t, cmd.Wait())

			o := r.shows(ref, models.SeenRunning)
			require.NoError(t, ready(r.ctx(), o.Identity.URL))
			r.daemon(r.box(ref.WorkspaceID), o.Identity)
			require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
			r.shows(ref, models.SeenSuspended)
			require.NoError(t, r.Delete(r.ctx(), ref))
		}
	})
}

func TestConcurrentChangesOfOneBoxAreSafe(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		r := open(t, hold)
		ref := sandbox.Ref{WorkspaceID: uuid.New()}
		spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.deployment, WorkspaceID: ref.WorkspaceID}}
		ctx := r.ctx()
		change := []func() error{
			func() error { return r.Create(ctx, spec, nothing) },
			func() error { return r.Delete(ctx, ref) },
			func() error { return r.Resume(ctx, ref, nothing) },
			func() error { return r.Suspend(ctx, ref, nothing) },
			func() error { _, err := r.Inspect(ctx, ref); return err },
		}
		var group sync.WaitGroup
		changed := make([]error, 15)
		for n := range changed {
			group.Go(func() { changed[n] = change[n%len(change)]() })
		}
		group.Wait()
		for n, err := range changed {
			require.NoError(t, ignore(ignore(err, sandbox.ErrGone), sandbox.ErrBusy), "change %d", n%len(change))
		}
		require.NoError(t, r.Create(ctx, spec, nothing))
		r.shows(ref, models.SeenRunning)
		all, err := processes()
		require.NoError(t, err)
		x := r.box(ref.WorkspaceID)
		require.Len(t, treeHold{box: x}.strays(all), 2, "one supervisor, one agent server")
		var gone int
		deleted := make([]error, 4)
		for n := range deleted {
			group.Go(func() { deleted[n] = r.Delete(ctx, ref) })
		}
		group.Wait()
		for _, err := range deleted {
			require.NoError(t, ignore(err, sandbox.ErrGone))
			if err != nil {
				gone++
			}
		}
		require.Less(t, gone, len(deleted))
		r.empty(x)
		entries, err := os.ReadDir(r.dir)
		require.NoError(t, err)
		require.Empty(t, entries)
	})
}

func TestLastActivityIsNowLessTheIdleTime(t *testing.T) {
	r := open(t, HoldAuto)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r.now = func() time.Time { return now }
	ref, _ := r.create()
	o := r.shows(ref, models.SeenRunning)
	require.Equal(t, now.Add(-90*time.Second), *o.LastActivity)
	require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
	require.Nil(t, r.shows(ref, models.SeenSuspended).LastActivity, "what stands still is not asked")
}

func TestAServerTooBusyToAnswerStillRuns(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	server := r.facts(x).Server
	require.NoError(t, server.signal(syscall.SIGSTOP)) // by somebody in the box, not by us
	stands := func() bool {
		s, ok := server.now()
		return ok && s.stopped()
	}
	require.NoError(t, until(r.ctx(), func() (bool, error) { return stands(), nil }))
	o, err := r.Inspect(r.ctx(), ref)
	require.NoError(t, err)
	require.Equal(t, models.SeenRunning, o.State)
	require.Nil(t, o.LastActivity)
	require.NoError(t, r.Resume(r.ctx(), ref, nothing))
	require.True(t, stands(), "what we did not stop we do not continue")
}

func TestASuspendThatWasCutShortIsUndoneByAResume(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	counter, size := r.daemon(x, r.shows(ref, models.SeenRunning).Identity)
	require.NoError(t, os.WriteFile(x.control(heldFile), []byte(heldSuspend), 0o600))
	require.NoError(t, counter.signal(syscall.SIGSTOP))
	r.shows(ref, models.SeenRunning) // so that whoever wanted it suspended says so again
	require.NoError(t, r.Resume(r.ctx(), ref, nothing))
	r.grows(size)
}

func TestASupervisorThatIsAskedToEndTakesItsBoxAlong(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	counter, _ := r.daemon(x, r.shows(ref, models.SeenRunning).Identity)
	facts := r.facts(x)
	require.NoError(t, facts.Supervisor.signal(syscall.SIGTERM))
	for _, p := range []proc{facts.Server, counter, facts.Supervisor} {
		r.ends(p)
	}
	text, err := os.ReadFile(x.control(logFile))
	require.NoError(t, err)
	require.Contains(t, string(text), "listening 127.0.0.1:", "the output of the agent server")
	require.Contains(t, string(text), "agent server ended: signal killed")
	r.shows(ref, models.SeenSuspended)
}

func TestTheRealAgentServerRunsInABox(t *testing.T) {
	program := filepath.Join(t.TempDir(), "agentserver")
	build := exec.Command("go", "build", "-o", program, "automation/cmd/agentserver")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	r := openIn(t, HoldAuto, t.TempDir(), map[string]string{realServer: program})
	ref, x := r.create()
	first := r.shows(ref, models.SeenRunning)
	require.NotNil(t, first.LastActivity)
	later := r.shows(ref, models.SeenRunning)
	require.WithinDuration(t, *first.LastActivity, *later.LastActivity, 1100*time.Millisecond, "looking is not activity (S0-129)")

	response := r.bash(first.Identity, "pwd; env; touch made")
	require.Contains(t, response, x.home())
	require.NotContains(t, response, first.Identity.Key)
	require.Contains(t, response, x.marker(), "a command is known as the box's")
	require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
	r.shows(ref, models.SeenSuspended)
	require.NoError(t, r.Resume(r.ctx(), ref, nothing))
	require.Equal(t, first.Identity, r.shows(ref, models.SeenRunning).Identity)
	require.FileExists(t, filepath.Join(x.home(), "made"))
}
