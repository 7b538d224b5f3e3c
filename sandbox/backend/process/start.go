package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"automation/sandbox"
)

// start is what is true of one start of a box only: after a reboot, or once its processes are gone, it is void. The
// supervisor writes it before and after it starts the agent server, so that a service that is killed in between loses nothing.
type start struct {
	BootID     string `json:"boot_id"`
	Supervisor proc   `json:"supervisor"`
	Server     proc   `json:"server"`           // zero until it is started
	Cgroup     string `json:"cgroup,omitempty"` // directory of the box's cgroup, "" where the supervisor's tree holds the box
}

// readStart returns the facts of the last start; the zero value where there was none, or none in this start of the machine.
func (x box) readStart() (start, error) {
	text, err := os.ReadFile(x.control(startFile))
	if errors.Is(err, fs.ErrNotExist) {
		return start{}, nil
	}
	if err != nil {
		return start{}, fmt.Errorf("read facts of the start: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return start{}, err
	}
	var s start
	_ = json.Unmarshal(text, &s) // what a box has spoilt is of no use: what still runs is found without it
	if s.BootID != boot {
		return start{}, nil
	}
	return s, nil
}

func (x box) writeStart(s start) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write facts of the start: %w", err)
	}
	return writeFile(x.control(startFile), text)
}

// marker is the entry of the environment by which everything started in a box is known as its own.
func (x box) marker() string { return workspaceVariable + "=" + x.id.String() }

// workspaceVariable tells a program in a box which one it is.
const workspaceVariable = "AUTOMATION_WORKSPACE_ID"

// environment is all that a box inherits: the listed words, never the service's own environment (S0-010). The session key is
// not in it; the supervisor hands it to the agent server alone.
func (b *Backend) environment(x box) []string {
	words := map[string]string{
		"PATH": b.config.Path, "LANG": b.config.Lang, "LC_ALL": b.config.LCAll, "TZ": b.config.TZ,
		"SSL_CERT_FILE": b.config.CertFile, "SSL_CERT_DIR": b.config.CertDir,
	}
	maps.DeleteFunc(words, func(_, value string) bool { return value == "" })
	maps.Copy(words, b.config.Env)
	maps.Copy(words, map[string]string{
		"HOME": x.home(), "TMPDIR": x.tmp(), "SHELL": "/bin/sh", workspaceVariable: x.id.String(),
	})
	var env []string
	for _, name := range slices.Sorted(maps.Keys(words)) {
		env = append(env, name+"="+words[name])
	}
	return env
}

// launch starts the box's supervisor, and by it the agent server, and returns when both are named in the start file. The
// caller holds the lock and has made sure that nothing of the box runs.
func (b *Backend) launch(ctx context.Context, x box) (err error) {
	for _, name := range []string{startFile, portFile, readyFile, heldFile} {
		if err := os.Remove(x.control(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("start box: %w", err)
		}
	}
	if err := x.ensureKey(); err != nil { // a box can have removed it
		return err
	}
	cmd := exec.Command(b.executable, SupervisorCommand, x.dir) //nolint:noctx // it outlives every context
	cmd.Dir, cmd.Env = x.home(), b.environment(x)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal to our group or terminal reaches a box
	log, err := os.OpenFile(x.control(logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start box: %w", err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if b.cgroups != "" {
		group, err := b.makeCgroup(x)
		if err != nil {
			return err
		}
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
		cmd.Args = append(cmd.Args, group.Name())
	}
	report, tell, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start box: %w", err)
	}
	defer report.Close()
	cmd.ExtraFiles = []*os.File{tell}
	err = cmd.Start()
	_ = tell.Close()
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	said, err := awaitReport(ctx, report)
	if err == nil && said == startedReport {
		// It outlives us; what is left of it once it has ended is collected by whoever looks at the box next.
		return cmd.Process.Release()
	}
	_ = cmd.Process.Kill()
	return errors.Join(err, startFailure(cmd.Process, said))
}

// awaitReport reads what the supervisor says until it closes the pipe.
func awaitReport(ctx context.Context, report *os.File) (string, error) {
	defer context.AfterFunc(ctx, func() { _ = report.SetReadDeadline(time.Unix(1, 0)) })()
	text, err := io.ReadAll(io.LimitReader(report, 4<<10))
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("start box: %w", err)
	}
	return string(text), nil
}

// startFailure collects a supervisor that did not start its agent server, and says why.
func startFailure(supervisor *os.Process, said string) error {
	state, err := supervisor.Wait()
	if err != nil {
		return fmt.Errorf("start box: %w", err)
	}
	if said != "" {
		return fmt.Errorf("start box: %s", strings.TrimSpace(said))
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() { // by a Delete that was faster
		return fmt.Errorf("start box: supervisor was killed: %w", sandbox.ErrBusy)
	}
	return fmt.Errorf("start box: supervisor ended: %s", state)
}
