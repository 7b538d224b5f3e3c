package command

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Bounds of the output of one command. Of its raw bytes the newest KeptBytes are kept (S2-054), in segments that are dropped
// whole, so at most one segment less; segmentDisk and keptDisk bound what very small frames cost on disk.
const (
	KeptBytes    = 8 << 20
	FrameBytes   = 32 << 10 // raw bytes of one line at most (S2-052)
	segmentBytes = 256 << 10
	segmentDisk  = 2 << 20
	keptDisk     = 64 << 20
	segmentMarks = 4096
)

// bounds are the bounds that tests make smaller.
type bounds struct {
	kept    int64 // raw bytes of one command's output
	segment int64
	text    int64 // of the commands that are kept
}

var usualBounds = bounds{kept: KeptBytes, segment: segmentBytes, text: keptText}

// Stream names, as they stand in the lines.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// segment is one file of consecutive lines. Its name carries first and offset.
type segment struct {
	first, last int64 // seq of its first line and of its last complete one
	offset      int64 // raw bytes printed before it
	raw, disk   int64 // bytes in it: as printed, and as stored
}

func (s segment) name() string { return fmt.Sprintf("out.%012d.%d", s.first, s.offset) }

func parseSegment(name string) (segment, bool) {
	rest, ok := strings.CutPrefix(name, "out.")
	first, offset, dotted := strings.Cut(rest, ".")
	a, err := strconv.ParseInt(first, 10, 64)
	b, err2 := strconv.ParseInt(offset, 10, 64)
	return segment{first: a, last: a - 1, offset: b}, ok && dotted && err == nil && err2 == nil
}

// mark remembers where a dropped segment began, so that a gap can be measured.
type mark struct{ seq, offset int64 }

// ending is how the output ended.
type ending struct {
	Seq      int64
	ExitCode int
	Reason   string
}

// output keeps what one command printed as numbered lines, on disk, the newest KeptBytes of it. Seq starts at 1 and counts
// both streams together. Readers are never waited for.
type output struct {
	dir    folder
	log    *slog.Logger
	bounds bounds

	mu       sync.Mutex
	segments []segment
	dropped  []mark
	file     *os.File // newest segment, nil when the next line opens one
	next     int64    // seq of the next line
	offset   int64    // raw bytes printed
	raw      int64    // raw bytes kept
	disk     int64    // bytes kept on disk
	lost     gap      // lines that could not be stored since the last one that was
	end      *ending
	changed  chan struct{} // closed at the next change
	line     []byte
}

func newOutput(r *Runner, id string) *output {
	return &output{dir: folder{r.dir, id}, log: r.log, bounds: r.bounds, next: 1, changed: make(chan struct{})}
}

// gap stands for lines that are no longer, or never were, in the store.
type gap struct{ from, to, bytes int64 }

func (g gap) line() []byte {
	return fmt.Appendf(nil, "{\"type\":\"gap\",\"seq\":%d,\"from_seq\":%d,\"to_seq\":%d,\"bytes\":%d}\n", g.to, g.from, g.to, g.bytes)
}

// append stores what was read from a stream, as one line, and returns its seq. A line that cannot be stored (full disk)
// becomes part of a gap: a command is never held up or ended by it.
func (o *output) append(stream string, data []byte) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	seq := o.next
	o.next++
	o.offset += int64(len(data))
	if err := o.store(stream, seq, data); err != nil {
		if o.lost.from == 0 {
			o.lost.from = seq
			o.log.Warn("output of a command cannot be stored", "error", err)
		}
		o.lost.to = seq
		o.lost.bytes += int64(len(data))
		o.closeSegment()
	}
	o.announce()
	return seq
}

func (o *output) store(stream string, seq int64, data []byte) error {
	if err := o.openSegment(seq, int64(len(data))); err != nil {
		return err
	}
	o.line = o.line[:0]
	if o.lost.from > 0 {
		o.line = append(o.line, o.lost.line()...)
	}
	o.line = fmt.Appendf(o.line, `{"type":"%s","seq":%d,"data":"`, stream, seq)
	o.line = base64.StdEncoding.AppendEncode(o.line, data)
	o.line = append(o.line, "\"}\n"...)
	n, err := o.file.Write(o.line)
	current := &o.segments[len(o.segments)-1]
	current.disk += int64(n)
	o.disk += int64(n)
	if err != nil {
		return err
	}
	current.last = seq
	current.raw += int64(len(data))
	o.raw += int64(len(data))
	o.lost = gap{}
	o.drop()
	return nil
}

// openSegment makes sure that the newest segment takes one more line.
func (o *output) openSegment(seq, size int64) error {
	if o.file != nil {
		current := o.segments[len(o.segments)-1]
		if current.raw+size <= o.bounds.segment && current.disk <= segmentDisk {
			return nil
		}
		o.closeSegment()
	}
	fresh := segment{first: seq, last: seq - 1, offset: o.offset - size}
	if o.lost.from > 0 {
		fresh.first, fresh.offset = o.lost.from, fresh.offset-o.lost.bytes
	}
	file, err := o.dir.write(fresh.name(), os.O_TRUNC)
	if err != nil {
		return err
	}
	o.file, o.segments = file, append(o.segments, fresh)
	return nil
}

func (o *output) closeSegment() {
	if o.file == nil {
		return
	}
	_ = o.file.Close() // every line was written, or is counted as lost
	o.file = nil
	if current := o.segments[len(o.segments)-1]; current.last < current.first { // it holds no line
		o.forget(len(o.segments) - 1)
	}
}

// drop removes the oldest segments beyond the bounds.
func (o *output) drop() {
	for len(o.segments) > 1 && (o.raw > o.bounds.kept || o.disk > keptDisk) {
		o.dropped = append(o.dropped, mark{o.segments[0].first, o.segments[0].offset})
		if len(o.dropped) > segmentMarks {
			thinned := o.dropped[:0]
			for i := 0; i < len(o.dropped); i += 2 {
				thinned = append(thinned, o.dropped[i])
			}
			o.dropped = thinned
		}
		o.forget(0)
	}
}

func (o *output) forget(i int) {
	s := o.segments[i]
	o.raw -= s.raw
	o.disk -= s.disk
	o.segments = append(o.segments[:i:i], o.segments[i+1:]...)
	if err := o.dir.remove(s.name()); err != nil {
		o.log.Warn("old output of a command cannot be removed", "error", err)
	}
}

// finish ends the output: the exit line has the next seq, and nothing comes after it.
func (o *output) finish(exitCode int, reason string) ending {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closeSegment()
	o.end = &ending{Seq: o.next, ExitCode: exitCode, Reason: reason}
	o.announce()
	return *o.end
}

func (o *output) announce() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// view is the state of an output at one moment.
type view struct {
	segments []segment
	dropped  []mark
	last     int64 // seq of the last line, stored or lost
	offset   int64 // raw bytes printed
	end      *ending
	changed  <-chan struct{}
}

func (o *output) view() view {
	o.mu.Lock()
	defer o.mu.Unlock()
	return view{
		segments: append([]segment(nil), o.segments...), dropped: o.dropped,
		last: o.next - 1, offset: o.offset, end: o.end, changed: o.changed,
	}
}

// firstKept is the seq of the oldest line that can still be read.
func (o *output) firstKept() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.segments) == 0 {
		return o.next
	}
	return o.segments[0].first
}

func (o *output) diskBytes() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.disk
}
