package command

import (
	"errors"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// drainGrace is how long the output of a command is still waited for after its exit, where something that it left in the
// background holds it open. What was in the pipe at the exit is read in any case, up to drainBytes a stream.
const (
	drainGrace = 250 * time.Millisecond
	drainBytes = 2 << 20
)

// streamReader reads one stream of a command. Whoever holds the stream open after the command has ended goes on writing
// into it: that is read and thrown away, because a closed pipe would kill it.
type streamReader struct {
	job    *job
	stream string
	pipe   *os.File
	held   []byte        // start of a character whose rest has not been read
	eof    chan struct{} // closed when the stream has been stored to its end
}

func (s *streamReader) run() {
	r := s.job.runner
	defer r.wg.Done()
	if !s.store() { // the deadline of drain has come
		s.rest()
	}
	s.take(nil, true)
	r.mu.Lock()
	r.leftovers[s.pipe] = true
	r.mu.Unlock()
	close(s.eof)
	_, _ = io.Copy(io.Discard, s.pipe) // until its end, or until Close
	r.mu.Lock()
	delete(r.leftovers, s.pipe)
	r.mu.Unlock()
	_ = s.pipe.Close() // nothing more comes from it
}

// store takes over the stream until its end (true) or the deadline (false).
func (s *streamReader) store() bool {
	buffer := make([]byte, FrameBytes-utf8.UTFMax)
	for {
		n, err := s.pipe.Read(buffer)
		s.take(buffer[:n], false)
		if err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// rest takes over what is in the pipe at this moment, without waiting for more.
func (s *streamReader) rest() {
	if s.pipe.SetReadDeadline(time.Time{}) != nil {
		return
	}
	raw, err := s.pipe.SyscallConn()
	if err != nil {
		return
	}
	buffer := make([]byte, FrameBytes-utf8.UTFMax)
	for taken := 0; taken < drainBytes; {
		n := 0
		_ = raw.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buffer)
			return true
		})
		if n <= 0 {
			return
		}
		taken += n
		s.take(buffer[:n], false)
	}
}

// take stores data up to its last whole character, so that no line ends within one; the rest waits for its end.
func (s *streamReader) take(data []byte, final bool) {
	data = append(s.held, data...)
	whole := len(data)
	if !final {
		whole -= partialCharacter(data)
	}
	if whole > 0 {
		s.job.keep(s.stream, data[:whole])
	}
	s.held = append([]byte(nil), data[whole:]...)
}

// partialCharacter is the length of the unfinished UTF-8 character at the end of data.
func partialCharacter(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		tail := data[len(data)-n:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// drain waits until the streams have been stored, after the exit of the command.
func drain(readers []*streamReader) {
	deadline := time.Now().Add(drainGrace)
	for _, reader := range readers {
		_ = reader.pipe.SetReadDeadline(deadline) // fails only on a pipe that is closed, at its end
	}
	for _, reader := range readers {
		<-reader.eof
	}
}
