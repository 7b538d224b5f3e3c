package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// proc is one process, told from a later one with the same pid by its start time.
type proc struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks since boot: /proc/<pid>/stat field 22
}

// status is what /proc shows of a process.
type status struct {
	proc
	parent int
	state  byte // of ps: R, S, D, T (stopped), t (traced), Z (zombie), X (dead)
}

// gone reports whether nothing of the process runs any more: a zombie only waits for its parent.
func (s status) gone() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

// stopped reports whether the process is held by a stop signal or a debugger.
func (s status) stopped() bool { return s.state == 'T' || s.state == 't' }

// readStatus reads /proc/<pid>/stat; false where there is no such process.
func readStatus(pid int) (status, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return status{}, false
	}
	return parseStat(string(text))
}

// parseStat reads a stat line. The second field is the command's name in parentheses and may itself hold spaces and
// parentheses, so fields are counted from the last one.
func parseStat(line string) (status, bool) {
	head, tail, ok := cutLast(line, ")")
	if !ok {
		return status{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(head, "(", 2)[0]))
	fields := strings.Fields(tail) // fields[0] is field 3
	if err != nil || len(fields) < 20 {
		return status{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	started, err2 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil {
		return status{}, false
	}
	return status{proc: proc{PID: pid, Started: started}, parent: parent, state: fields[0][0]}, true
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// now returns what /proc shows of exactly this process; false when it is gone or its pid belongs to another one.
func (p proc) now() (status, bool) {
	if p.PID <= 0 {
		return status{}, false
	}
	s, ok := readStatus(p.PID)
	return s, ok && s.Started == p.Started && !s.gone()
}

// alive reports whether exactly this process still runs (stopped counts as running).
func (p proc) alive() bool {
	_, ok := p.now()
	return ok
}

// signal sends sig to exactly this process. The handle is taken before the start time is compared, so a pid that is reused
// in between is never hit. A process that is gone is no error.
func (p proc) signal(sig syscall.Signal) error {
	if p.PID <= 1 || p.PID == os.Getpid() {
		return fmt.Errorf("refuse to signal process %d", p.PID)
	}
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return fmt.Errorf("find process %d: %w", p.PID, err)
	}
	defer func() { _ = handle.Release() }()
	if !p.alive() {
		return nil
	}
	if err := handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// processes lists what runs on this host, zombies left out.
func processes() ([]status, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []status
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, ok := readStatus(pid); ok && !s.gone() {
			all = append(all, s)
		}
	}
	return all, nil
}

// errNoChildren means that this kernel keeps no lists of children.
var errNoChildren = errors.New("no lists of children in /proc")

// childrenOf lists the children of a process: each thread has its own.
func childrenOf(pid int) ([]int, error) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return nil, fmt.Errorf("list children: %w", err)
	}
	var pids []int
	for _, thread := range threads {
		text, err := os.ReadFile(filepath.Join(tasks, thread.Name(), "children"))
		if errors.Is(err, fs.ErrNotExist) && pathExists(filepath.Join(tasks, thread.Name(), "stat")) {
			return nil, errNoChildren
		}
		if err != nil { // the thread has just ended; its children are another one's
			return nil, fmt.Errorf("list children: %w", err)
		}
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// descendants returns those of all that have root among their ancestors.
func descendants(all []status, root int) []status {
	children := map[int][]status{}
	for _, s := range all {
		children[s.parent] = append(children[s.parent], s)
	}
	var found []status
	for next := []int{root}; len(next) > 0; next = next[1:] {
		for _, s := range children[next[0]] {
			if s.PID == root { // a broken table must not make a loop of us
				continue
			}
			found = append(found, s)
			next = append(next, s.PID)
		}
	}
	return found
}

// carries reports whether the process is ours to touch (own user id) and was started with entry ("NAME=value") in its
// environment.
func (p proc) carries(entry string) bool {
	dir := "/proc/" + strconv.Itoa(p.PID)
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil || int(st.Uid) != os.Geteuid() {
		return false
	}
	environ, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return false
	}
	for item := range bytes.SplitSeq(environ, []byte{0}) {
		if string(item) == entry {
			return true
		}
	}
	return false
}

// reap collects exactly this process if it is a child of ours that has ended; nobody else waits for supervisors.
func (p proc) reap() {
	if s, ok := readStatus(p.PID); ok && s.proc == p && s.gone() {
		var ws syscall.WaitStatus
		_, _ = syscall.Wait4(p.PID, &ws, syscall.WNOHANG, nil)
	}
}

// bootID tells this start of the machine from every other; process facts are worth nothing after another one.
var bootID = sync.OnceValues(func() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
})
