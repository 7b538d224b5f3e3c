package command

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StopGrace is what a command that is ended has for stopping at a SIGTERM where nobody says otherwise.
const StopGrace = time.Second

// Pauses of ending a tree: a SIGKILL is repeated for killBudget while new members appear.
const (
	killBudget = 3 * time.Second
	treePoll   = 10 * time.Millisecond
)

// tree is everything that came from one command: the members of its session, their descendants, and the sessions that these
// made. A process group is not enough, because a shell with job control gives each of its children a group of its own.
type tree struct {
	sessions map[int]bool
}

func newTree(leader int) *tree { return &tree{sessions: map[int]bool{leader: true}} }

// process is one line of the process table.
type process struct {
	pid, parent, group, session int
	started                     string // clock ticks since boot: with the pid the identity of a process
}

// processes lists those that run; zombies count as gone.
func processes() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("process table: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("process table: %w", err)
	}
	all := make([]process, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readProcess(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// readProcess reads one process; false when it is gone.
func readProcess(pid int) (process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name of the program stands in parentheses and may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || bytes.ContainsAny(fields[0], "ZXx") {
		return process{}, false
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	group, _ := strconv.Atoi(string(fields[2]))
	session, _ := strconv.Atoi(string(fields[3]))
	return process{pid: pid, parent: parent, group: group, session: session, started: string(fields[19])}, true
}

// groups lists the process groups of the tree as it is now, those of session leaders first, and remembers the sessions it
// finds: a member keeps its session when its parent dies. A group lies within one session, so it is in the tree as a whole.
func (t *tree) groups() ([]int, error) {
	all, err := processes()
	if err != nil { // then the groups of the session leaders are all that can be reached
		return slices.Collect(maps.Keys(t.sessions)), err
	}
	members, groups := map[int]bool{}, map[int]bool{}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if p.group <= 1 || p.session <= 1 { // a signal to group 0 or 1 means ourselves, or everybody
				continue
			}
			if !members[p.pid] && (t.sessions[p.session] || members[p.parent]) {
				members[p.pid], groups[p.group], t.sessions[p.session], grown = true, true, true, true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(groups), func(a, b int) int {
		if t.sessions[a] != t.sessions[b] {
			return map[bool]int{true: -1, false: 1}[t.sessions[a]]
		}
		return cmp.Compare(a, b)
	}), nil
}

// signal sends a signal to the whole tree and returns how many groups there were. Each group gets it at one stroke: a shell
// dies with its child, and has no time to report the child's death.
func (t *tree) signal(sig syscall.Signal) (int, error) {
	groups, err := t.groups()
	for _, group := range groups {
		if failed := syscall.Kill(-group, sig); failed != nil && !errors.Is(failed, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("signal group %d: %w", group, failed))
		}
	}
	return len(groups), err
}

// end stops the tree: SIGTERM (and SIGCONT, so that a stopped member notices), the grace, then SIGKILL until none is left.
// It returns when the tree is gone, or with an error after the budget.
func (t *tree) end(grace time.Duration) error {
	_, err := t.signal(syscall.SIGTERM)
	_, errContinue := t.signal(syscall.SIGCONT)
	if t.gone(grace, 0) {
		return nil
	}
	if t.gone(killBudget, syscall.SIGKILL) {
		return nil
	}
	return errors.Join(errors.New("processes of a command outlived SIGKILL"), err, errContinue)
}

// gone waits until no member is left, sending sig (0: none) at each look.
func (t *tree) gone(within time.Duration, sig syscall.Signal) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	look := time.NewTicker(treePoll)
	defer look.Stop()
	for {
		if left, err := t.signal(sig); left == 0 && err == nil {
			return true
		}
		select {
		case <-deadline.C:
			return false
		case <-look.C:
		}
	}
}

// bootID names the present boot of the machine: pids and start times mean nothing in another.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
