package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// SupervisorCommand is the hidden subcommand that runs a box's supervisor.
const SupervisorCommand = "box-supervisor"

// startedReport is what the supervisor says on its report pipe once the agent server runs.
const startedReport = "started\n"

// reportFD is the descriptor of the report pipe in the supervisor.
const reportFD = 3

// oomScore makes the kernel end a box before the service when memory runs out.
const oomScore = 500

// SupervisorMain is the process under which everything in a box runs: args are the box's directory and, where there is one,
// its cgroup. It adopts what daemonizes, collects what ends, keeps the log bounded, and when the agent server is gone kills
// the rest of the box and ends. It knows nothing of the service, which may be gone for long. It returns the exit code.
func SupervisorMain(args []string) int {
	unix.CloseOnExec(reportFD)
	report := os.NewFile(reportFD, "report")
	if report == nil || len(args) < 1 || len(args) > 2 {
		fmt.Fprintln(os.Stderr, "the supervisor is started by the service only")
		return 2
	}
	s := supervisor{box: box{dir: args[0]}}
	if len(args) == 2 {
		s.facts.Cgroup = args[1]
	}
	if err := s.startServer(); err != nil {
		_, _ = io.WriteString(report, err.Error())
		return 1
	}
	_, _ = io.WriteString(report, startedReport) // a service that was killed meanwhile does not matter
	_ = report.Close()
	return s.wait()
}

type supervisor struct {
	box   box
	facts start
	log   *boundedLog
}

// startServer names itself in the start file, starts the agent server and names that.
func (s *supervisor) startServer() (err error) {
	if s.box.id, err = uuid.Parse(filepath.Base(s.box.dir)); err != nil {
		return fmt.Errorf("directory of the box: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(oomScore)), 0) // a hint; refused in some containers
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 0, Max: 0})              // a core file holds the session key
	self, ok := readStatus(os.Getpid())
	if !ok {
		return errors.New("read own start time")
	}
	if s.facts.BootID, err = bootID(); err != nil {
		return err
	}
	s.facts.Supervisor = self.proc
	if err := s.box.writeStart(s.facts); err != nil {
		return err
	}
	if s.log, err = openLog(s.box.control(logFile)); err != nil {
		return err
	}
	server, err := s.exec()
	if err != nil {
		return err
	}
	s.facts.Server = server
	if err := s.box.writeStart(s.facts); err != nil {
		return errors.Join(err, server.signal(syscall.SIGKILL))
	}
	return nil
}

// exec starts the agent server with what the supervisor was given, and the session key.
func (s *supervisor) exec() (proc, error) {
	program, err := os.Executable()
	if err != nil {
		return proc{}, fmt.Errorf("find own executable: %w", err)
	}
	key, err := os.ReadFile(s.box.control(keyFile))
	if err != nil {
		return proc{}, fmt.Errorf("read session key: %w", err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		return proc{}, fmt.Errorf("start agent server: %w", err)
	}
	args := []string{"agent-server", "--host", "127.0.0.1", "--port", "0", "--port-file", s.box.control(portFile)}
	cmd := exec.Command(program, args...) //nolint:noctx // it ends when somebody ends it
	cmd.Dir, cmd.Env = s.box.home(), append(os.Environ(), "OH_SESSION_API_KEYS_0="+string(key))
	cmd.Stdout, cmd.Stderr = in, in
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		_ = out.Close()
		return proc{}, fmt.Errorf("start agent server: %w", err)
	}
	go s.log.copy(out) // ends with the supervisor
	server, ok := readStatus(cmd.Process.Pid)
	if !ok { // a child that nobody has waited for is still there, as a zombie at least
		return proc{}, errors.New("read start time of the agent server")
	}
	return server.proc, nil
}

// wait collects what ends until the agent server does, then ends the rest. It never returns while a child is left.
func (s *supervisor) wait() int {
	ask := make(chan os.Signal, 1)
	signal.Notify(ask, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for range ask { // asked to end: without its server the box ends
			_ = s.facts.Server.signal(syscall.SIGKILL)
		}
	}()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil { // no children: the server's end was seen by nobody, which cannot be
			return 1
		}
		if pid == s.facts.Server.PID {
			s.log.printf("agent server ended: %s", describe(ws))
			break
		}
	}
	return s.endRest()
}

// endRest kills every descendant, again while new ones appear, and collects them.
func (s *supervisor) endRest() int {
	go s.killRest() // ends with the supervisor
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD: nothing is left
			return 0
		}
	}
}

// killRest kills until nothing is left; what hangs in the kernel is tried again.
func (s *supervisor) killRest() {
	for done := false; !done; {
		ctx, cancel := context.WithTimeout(context.Background(), killPatience)
		done = treeHold{box: s.box, facts: s.facts}.killAll(ctx) == nil
		cancel()
	}
}

func describe(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + ws.Signal().String()
	}
	return "exit status " + strconv.Itoa(ws.ExitStatus())
}

// logLimit bounds the log file and the one before it, in bytes each.
const logLimit = 1 << 20

// boundedLog writes lines to a file that is replaced when it is full; one predecessor is kept as path + ".1".
type boundedLog struct {
	mu   sync.Mutex
	path string
	file *os.File
	size int64
}

func openLog(path string) (*boundedLog, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open log: %w", err), file.Close())
	}
	return &boundedLog{path: path, file: file, size: info.Size()}, nil
}

// copy writes what comes out of r until its end. It keeps reading when writing fails: a full disk must not stop a box.
func (l *boundedLog) copy(r io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := r.Read(buffer)
		if n > 0 {
			l.write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

func (l *boundedLog) write(text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(text)) > logLimit {
		l.turn()
	}
	n, _ := l.file.Write(text)
	l.size += int64(n)
}

// turn begins a new file; where that fails the old one is cut instead, the bound comes first.
func (l *boundedLog) turn() {
	l.size = 0
	if os.Rename(l.path, l.path+".1") == nil {
		if file, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err == nil {
			_ = l.file.Close()
			l.file = file
			return
		}
	}
	_ = l.file.Truncate(0)
}

func (l *boundedLog) printf(format string, args ...any) {
	l.write([]byte(time.Now().UTC().Format(time.RFC3339) + " " + fmt.Sprintf(format, args...) + "\n"))
}
