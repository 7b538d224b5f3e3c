package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Pieces of output: one is closed when it holds pieceBytes, or is older than a second and than a sixteenth of the command's
// age, so that a long command makes some hundred of them and not one a second.
const (
	pieceBytes = 1 << 20
	pieceAge   = time.Second
	pieceShare = 16
)

// job is one command.
type job struct {
	runner *Runner
	id     string
	spec   Spec
	began  time.Time
	output *output

	stopOnce sync.Once
	stop     chan struct{} // closed by requestStop
	grace    time.Duration // for what stops at a SIGTERM; set before stop is closed
	done     chan struct{} // closed at the end; then end and last are set

	mu    sync.Mutex
	group struct { // the piece that is being collected
		from  int64
		bytes int64
	}
	order int
	end   *ending
	last  Event
}

func (j *job) finished() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

func (j *job) requestStop(grace time.Duration) {
	if j.stop != nil { // one that was loaded has ended
		j.stopOnce.Do(func() {
			j.grace = grace
			close(j.stop)
		})
	}
}

// prepare makes the directory and writes the command down before anything runs, so that a restart knows of it.
func (j *job) prepare() {
	r := j.runner
	if err := r.dir.Mkdir(j.id, 0o700); err != nil {
		r.log.Warn("a command runs without a record", "command_id", j.id, "error", err)
	}
	j.output = newOutput(r, j.id)
	j.group.from = 1
	j.write(record{Type: "command", ID: j.id, Timestamp: j.began, Command: j.spec.Command, Cwd: j.spec.Cwd, Timeout: j.spec.Timeout, Key: j.spec.Key})
}

// run is the whole life of the command.
func (j *job) run() {
	shell, readers, err := j.spawn()
	if err != nil {
		j.keep(Stderr, []byte(startError(err)))
		j.finish(-1, ReasonStartFailed)
		return
	}
	leader, _ := readProcess(shell.Process.Pid)
	j.write(record{Type: "process", PID: shell.Process.Pid, Started: leader.started, Boot: bootID()})

	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = shell.Wait() // the state says it all
	}()
	ended := j.supervise(newTree(shell.Process.Pid), exited)
	drain(readers)
	code, reason := exitOf(shell.ProcessState)
	switch ended {
	case ReasonTimedOut:
		code, reason = -1, ended
	case ReasonStopped:
		reason = ended
	}
	j.finish(code, reason)
}

// spawn starts the shell in a session of its own, with a reader on each stream.
func (j *job) spawn() (*exec.Cmd, []*streamReader, error) {
	// Its life is the command's own, not that of a context: tree.end stops it.
	shell := exec.CommandContext(context.Background(), "/bin/sh", "-c", j.spec.Command)
	shell.Env = j.runner.options.Environ
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if j.spec.Cwd != nil {
		shell.Dir = *j.spec.Cwd
	}
	var readers []*streamReader
	var ends []io.Closer
	defer func() {
		for _, end := range ends {
			_ = end.Close() // the child has its own
		}
	}()
	for stream, target := range map[string]*io.Writer{Stdout: &shell.Stdout, Stderr: &shell.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, errors.Join(err, closeReaders(readers))
		}
		ends = append(ends, w)
		*target = w
		readers = append(readers, &streamReader{job: j, stream: stream, pipe: r, eof: make(chan struct{})})
	}
	if err := shell.Start(); err != nil {
		return nil, nil, errors.Join(err, closeReaders(readers))
	}
	for _, reader := range readers {
		j.runner.wg.Add(1)
		go reader.run()
	}
	return shell, readers, nil
}

func closeReaders(readers []*streamReader) error {
	var errs []error
	for _, reader := range readers {
		errs = append(errs, reader.pipe.Close())
	}
	return errors.Join(errs...)
}

// supervise waits for the exit, ends the command when its time is up or it is told to, and returns why.
func (j *job) supervise(family *tree, exited <-chan struct{}) (ended string) {
	limit := time.NewTimer(seconds(j.spec.Timeout))
	defer limit.Stop()
	piece := time.NewTimer(pieceAge)
	defer piece.Stop()
	stop, started, grace := j.stop, time.Now(), StopGrace
	for {
		select {
		case <-exited:
			return ended
		case <-limit.C:
			ended = ReasonTimedOut
		case <-stop:
			ended, stop, grace = ReasonStopped, nil, j.grace
		case <-piece.C:
			j.closePiece()
			piece.Reset(max(pieceAge, time.Since(started)/pieceShare))
			continue
		}
		if err := family.end(grace); err != nil {
			j.runner.log.Warn("a command was not ended", "command_id", j.id, "error", err)
		}
	}
}

// seconds is a duration of n seconds, within what a duration can hold.
func seconds(n int) time.Duration {
	return time.Duration(min(max(int64(n), 0), math.MaxInt64/int64(time.Second))) * time.Second
}

// keep stores what a stream gave.
func (j *job) keep(stream string, data []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.output.append(stream, data)
	j.group.bytes += int64(len(data))
	if j.group.bytes >= pieceBytes {
		j.flush(nil)
	}
}

// closePiece makes an event of what was collected.
func (j *job) closePiece() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.group.bytes > 0 {
		j.flush(nil)
	}
}

// flush writes the collected piece as an event; end makes it the last. The caller holds mu of the job.
func (j *job) flush(end *ending) {
	r := j.runner
	e := Event{ID: newID(), Order: j.order, job: j, from: j.group.from, to: j.output.view().last}
	line := record{Type: "output", ID: e.ID, Order: e.Order, From: e.from, To: e.to}
	if end != nil {
		e.ExitCode = &end.ExitCode
		line.ExitCode, line.ExitSeq, line.Reason = e.ExitCode, end.Seq, end.Reason
	}
	j.order++
	j.group.from, j.group.bytes = e.to+1, 0
	r.mu.Lock()
	e.At = r.stamp()
	r.events = append(r.events, e)
	r.mu.Unlock()
	line.Timestamp = e.At
	j.write(line)
	j.last = e
}

// finish records the end, once, after everything that was printed.
func (j *job) finish(code int, reason string) {
	j.mu.Lock()
	end := j.output.finish(code, reason)
	j.flush(&end)
	j.end = &end
	j.mu.Unlock()
	r := j.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	if reason != ReasonLost { // that one was never counted
		r.running--
		r.options.Ended()
	}
	close(j.done)
	r.retain()
}

// exitOf is the exit code in the form of the contract: that of the process, or minus the signal that killed it.
func exitOf(state *os.ProcessState) (int, string) {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return -int(status.Signal()), ReasonKilled
	}
	return state.ExitCode(), ReasonExited
}

// startError is what the output says of a command that could not be started.
func startError(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		text := number.Error()
		return fmt.Sprintf("Error executing command: [Errno %d] %s", int(number), strings.ToUpper(text[:1])+text[1:])
	}
	return "Error executing command: " + err.Error()
}
