package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
)

// Frame types of output streams, in a box (process_output_v1) and in stored output.
const (
	FrameStdout    = "stdout"
	FrameStderr    = "stderr"
	FrameGap       = "gap"
	FrameExit      = "exit"
	FrameKeepalive = "keepalive"
)

// frameBytes is the most raw output that one frame carries (S2-052).
const frameBytes = 32 << 10

// Frame is one NDJSON line of output. Data is base64 on the wire.
type Frame struct {
	Type     string `json:"type"`
	Seq      int64  `json:"seq,omitempty"`
	Data     []byte `json:"data,omitempty"`
	FromSeq  int64  `json:"from_seq,omitempty"`
	ToSeq    int64  `json:"to_seq,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// ProcessOutput streams the frames of a command after seq after, as far as the box has them now (process_output_v1). A
// stream that ends without an exit frame was cut or its command still runs. The caller's context bounds the whole read.
func (a Agent) ProcessOutput(ctx context.Context, commandID string, after int64) iter.Seq2[Frame, error] {
	return a.frames(ctx, commandID, url.Values{"after": {itoa(after)}, "follow": {"false"}})
}

// FollowOutput streams the frames of a command after seq after, as they come, until its exit frame. A stream that ends without
// one was cut: it is followed again from the last seq.
func (a Agent) FollowOutput(ctx context.Context, commandID string, after int64) iter.Seq2[Frame, error] {
	return a.frames(ctx, commandID, url.Values{"after": {itoa(after)}})
}

func (a Agent) frames(ctx context.Context, commandID string, query url.Values) iter.Seq2[Frame, error] {
	r := agentRequest{method: http.MethodGet, path: "/api/processes/" + url.PathEscape(commandID) + "/output", query: query}
	return func(yield func(Frame, error) bool) {
		resp, err := a.send(ctx, ctx, r)
		if err != nil {
			yield(Frame{}, err)
			return
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(make([]byte, 0, 64<<10), 1<<20)
		for lines.Scan() {
			if len(lines.Bytes()) == 0 {
				continue
			}
			var frame Frame
			if err := json.Unmarshal(lines.Bytes(), &frame); err != nil {
				yield(Frame{}, fmt.Errorf("%s %s: line is no frame: %w", r.method, r.path, err))
				return
			}
			if !yield(frame, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Frame{}, a.transportError(ctx, r, err))
		}
	}
}

// commandFrames reads the output events of a command from a box without process_output_v1, as frames.
func (a Agent) commandFrames(ctx context.Context, commandID string) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		var seq int64
		emit := func(kind, text string) bool {
			for len(text) > 0 {
				n := min(len(text), frameBytes)
				seq++
				if !yield(Frame{Type: kind, Seq: seq, Data: []byte(text[:n])}, nil) {
					return false
				}
				text = text[n:]
			}
			return true
		}
		query := url.Values{
			"kind__eq": {"BashOutput"}, "command_id__eq": {commandID}, "sort_order": {"TIMESTAMP"}, "limit": {"2"},
		}
		var exit *int
		for {
			items, next, err := a.bashEvents(ctx, query)
			if err != nil {
				yield(Frame{}, err)
				return
			}
			for _, item := range items {
				out := item.output()
				if out.ExitCode != nil {
					exit = out.ExitCode
				}
				if !emit(FrameStdout, out.Stdout) || !emit(FrameStderr, out.Stderr) {
					return
				}
			}
			if next == "" {
				break
			}
			query.Set("page_id", next)
		}
		if exit != nil {
			yield(Frame{Type: FrameExit, Seq: seq + 1, ExitCode: exit, Reason: "exited"}, nil)
		}
	}
}

// outputTail keeps the newest frames of an output within a bound of raw bytes; what it drops becomes a gap (S2-054).
type outputTail struct {
	limit   int64
	frames  []Frame
	bytes   int64
	dropped Frame // Type FrameGap once something was dropped
	exit    *Frame
	lastSeq int64
}

func (t *outputTail) add(f Frame) {
	switch f.Type {
	case FrameStdout, FrameStderr:
		t.frames = append(t.frames, f)
		t.bytes += int64(len(f.Data))
	case FrameGap:
		t.widen(f.FromSeq, f.ToSeq, f.Bytes)
	case FrameExit:
		t.exit = &f
	default:
		return
	}
	t.lastSeq = max(t.lastSeq, f.Seq, f.ToSeq)
	drop := 0
	for t.bytes > t.limit {
		f := t.frames[drop]
		t.widen(f.Seq, f.Seq, int64(len(f.Data)))
		t.bytes -= int64(len(f.Data))
		t.frames[drop] = Frame{}
		drop++
	}
	t.frames = t.frames[drop:]
}

func (t *outputTail) widen(from, to, bytes int64) {
	if t.dropped.Type == "" {
		t.dropped = Frame{Type: FrameGap, FromSeq: from}
	}
	t.dropped.FromSeq = min(t.dropped.FromSeq, from)
	t.dropped.ToSeq = max(t.dropped.ToSeq, to)
	t.dropped.Seq = t.dropped.ToSeq
	t.dropped.Bytes += bytes
}

// lines returns what is stored: the gap if any, the frames, and always an exit line at the end.
func (t *outputTail) lines() []Frame {
	var all []Frame
	if t.dropped.Type != "" {
		all = append(all, t.dropped)
	}
	all = append(all, t.frames...)
	exit := Frame{Type: FrameExit, Seq: t.lastSeq + 1, Reason: "running"}
	if t.exit != nil {
		exit = *t.exit
	}
	return append(all, exit)
}

// frameReader encodes frames as NDJSON while it is read, one line at a time.
type frameReader struct {
	frames []Frame
	line   []byte
}

func (r *frameReader) Read(p []byte) (int, error) {
	for len(r.line) == 0 {
		if len(r.frames) == 0 {
			return 0, io.EOF
		}
		line, err := json.Marshal(r.frames[0])
		if err != nil {
			return 0, errors.Join(errors.New("encode output"), err)
		}
		line = append(line, '\n')
		r.line, r.frames = line, r.frames[1:]
	}
	n := copy(p, r.line)
	r.line = r.line[n:]
	return n, nil
}
