package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"time"
)

// folder is the directory of one command, reached from the handle of the directory of all.
type folder struct {
	root *os.Root
	name string
}

func (f folder) path(name string) string { return f.name + "/" + name }

func (f folder) open(name string) (*os.File, error) { return f.root.Open(f.path(name)) }

func (f folder) remove(name string) error { return f.root.Remove(f.path(name)) }

func (f folder) write(name string, how int) (*os.File, error) {
	return f.root.OpenFile(f.path(name), os.O_CREATE|os.O_WRONLY|how, 0o600)
}

// recordName is the file that tells the story of one command in lines: the command, its process, its events.
const recordName = "record"

// record is one line of it.
type record struct {
	Type string `json:"type"` // command, process, output

	ID        string    `json:"id,omitempty"`
	Timestamp time.Time `json:"timestamp,omitzero"`

	Command string  `json:"command,omitempty"`
	Cwd     *string `json:"cwd,omitempty"`
	Timeout int     `json:"timeout,omitempty"`
	Key     string  `json:"key,omitempty"`

	PID     int    `json:"pid,omitempty"`
	Started string `json:"started,omitempty"`
	Boot    string `json:"boot,omitempty"`

	Order    int    `json:"order,omitempty"`
	From     int64  `json:"from,omitempty"`
	To       int64  `json:"to,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	ExitSeq  int64  `json:"exit_seq,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// write appends a line to the record. A full disk costs the line, not the command: what matters is in memory too.
func (j *job) write(line record) {
	text, err := json.Marshal(line)
	if err == nil {
		var file *os.File
		if file, err = j.output.dir.write(recordName, os.O_APPEND); err == nil {
			_, err = file.Write(append(text, '\n'))
			err = errors.Join(err, file.Close())
		}
	}
	if err != nil {
		j.runner.log.Warn("record of a command cannot be written", "command_id", j.id, "error", err)
	}
}

// load reads the commands that an earlier server left. One that had not ended is lost: its output has no reader any more,
// so what is left of it is ended, and it gets the exit code -1.
func (r *Runner) load() error {
	dir, err := r.dir.Open(".")
	if err != nil {
		return fmt.Errorf("read commands: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("read commands: %w", err)
	}
	var unfinished []*job
	for _, name := range names {
		if !isID(name) {
			continue
		}
		j, left, err := r.loadJob(name)
		if err != nil {
			r.log.Warn("record of a command cannot be read", "command_id", name, "error", err)
			continue
		}
		r.jobs[j.id] = j
		if j.end == nil {
			left.end(r)
			unfinished = append(unfinished, j)
		}
	}
	sort.Slice(r.events, func(a, b int) bool { return r.events[a].At.Before(r.events[b].At) })
	if n := len(r.events); n > 0 {
		r.lastStamp = r.events[n-1].At
	}
	for _, j := range unfinished {
		j.finish(-1, ReasonLost)
	}
	r.retain()
	return nil
}

// leftover is the process of a command that an earlier server started.
type leftover struct {
	pid           int
	started, boot string
}

func (l leftover) end(r *Runner) {
	if p, ok := readProcess(l.pid); !ok || l.boot != bootID() || p.started != l.started {
		return
	}
	if !newTree(l.pid).gone(killBudget, 9) {
		r.log.Warn("processes of a lost command outlived SIGKILL", "pid", l.pid)
	}
}

func (r *Runner) loadJob(id string) (*job, leftover, error) {
	j := &job{runner: r, id: id, done: make(chan struct{}), output: newOutput(r, id)}
	left, err := j.replay()
	if err == nil {
		err = j.output.load()
	}
	if err != nil {
		return nil, leftover{}, err
	}
	if j.end != nil {
		j.output.end = j.end
		j.output.next = max(j.output.next, j.end.Seq)
		close(j.done)
	}
	return j, left, nil
}

// replay reads the record; a last line that was cut short is left out.
func (j *job) replay() (leftover, error) {
	file, err := j.output.dir.open(recordName)
	if err != nil {
		return leftover{}, err
	}
	defer file.Close()
	var left leftover
	lines := json.NewDecoder(bufio.NewReader(file))
	for {
		var line record
		if err := lines.Decode(&line); err != nil {
			if j.spec.Command == "" && !errors.Is(err, io.EOF) {
				return left, err
			}
			break
		}
		switch line.Type {
		case "command":
			j.spec = Spec{Command: line.Command, Cwd: line.Cwd, Timeout: line.Timeout, Key: line.Key}
			j.runner.events = append(j.runner.events, Event{ID: j.id, At: line.Timestamp, job: j, Order: -1})
		case "process":
			left = leftover{line.PID, line.Started, line.Boot}
		case "output":
			e := Event{ID: line.ID, At: line.Timestamp, job: j, Order: line.Order, from: line.From, to: line.To, ExitCode: line.ExitCode}
			j.runner.events = append(j.runner.events, e)
			j.order, j.group.from = line.Order+1, line.To+1
			if line.ExitCode != nil {
				j.last, j.end = e, &ending{Seq: line.ExitSeq, ExitCode: *line.ExitCode, Reason: line.Reason}
			}
		}
	}
	return left, nil
}

// load finds the segments that are on disk. The newest may end in half a line, which is left out.
func (o *output) load() error {
	dir, err := o.dir.open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if s, ok := parseSegment(name); ok {
			if info, err := o.dir.root.Lstat(o.dir.path(name)); err == nil {
				s.disk = info.Size()
				o.segments = append(o.segments, s)
				o.disk += s.disk
			}
		}
	}
	sort.Slice(o.segments, func(a, b int) bool { return o.segments[a].first < o.segments[b].first })
	for i := range o.segments {
		s := &o.segments[i]
		if i+1 < len(o.segments) {
			s.last, s.raw = o.segments[i+1].first-1, o.segments[i+1].offset-s.offset
		} else {
			o.measure(s)
		}
		o.raw += s.raw
		o.next, o.offset = s.last+1, s.offset+s.raw
	}
	return nil
}

// measure reads the newest segment through.
func (o *output) measure(s *segment) {
	file, err := o.dir.open(s.name())
	if err != nil {
		return
	}
	defer file.Close()
	lines := json.NewDecoder(file)
	for {
		var f frame
		if lines.Decode(&f) != nil {
			return
		}
		s.last = f.Seq
		s.raw += int64(len(f.Data))
	}
}
