package session_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models/modelstest"
	"automation/sandbox"
	"automation/session"
)

// Two hundred readers follow one server that prints 1 MiB a second, and are sent away every two seconds: each of them gets every
// byte once, in order. heap-MiB is the most that collector, readers and the box's own server took together.
func BenchmarkReaders(b *testing.B) {
	const readers, seconds = 200, 7 // what is kept, at most
	for b.Loop() {
		r := newRig(b, modelstest.NewSQLite(b))
		want := sha256.Sum256(r.data(seconds << 20))
		s, stop := r.replica(fmt.Sprintf(
			`i=0; while [ $i -lt %d ]; do dd if="$HOME/data" bs=131072 skip=$i count=1 2>/dev/null; i=$((i+1)); sleep 0.125; done`, seconds*8))
		var most atomic.Uint64
		measured := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(measured)
			for {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most.Store(max(most.Load(), m.HeapInuse+m.StackInuse))
				select {
				case <-done:
					return
				case <-time.After(200 * time.Millisecond):
				}
			}
		}()
		started := r.start(s)
		sums := make([]uint32, readers)
		var all sync.WaitGroup
		for i := range readers {
			all.Go(func() { sums[i] = checksum(r, s, started.ID) })
		}
		all.Wait()
		close(done)
		<-measured
		whole, lines := sha256.New(), crc32.New(castagnoli)
		for _, l := range r.read(s, started.ID, time.Minute) {
			text, err := json.Marshal(sandbox.Frame{Type: l.Type, Seq: l.Seq, Data: l.Data})
			require.NoError(b, err)
			if l.Type == "stdout" {
				_, _ = whole.Write(l.Data)
				_, _ = lines.Write(append(text, '\n'))
			}
		}
		require.Equal(b, want[:], whole.Sum(nil))
		for _, sum := range sums {
			require.Equal(b, lines.Sum32(), sum)
		}
		b.ReportMetric(float64(most.Load())/(1<<20), "heap-MiB")
		stop()
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum follows a session to its end and sums its lines of output up, as they come: to decode them two hundred times would
// cost more than what is measured.
func checksum(r *rig, s *session.Sessions, id string) uint32 {
	sum, seq, over := crc32.New(castagnoli), int64(0), false
	for !over {
		err := s.Read(r.Context(), session.Reading{SessionID: id, After: seq, Follow: true, Until: time.Now().Add(2 * time.Second)}, func(lines []byte) error {
			if len(lines) == 0 || bytes.Equal(lines, []byte("{\"type\":\"keepalive\"}\n")) {
				return nil
			}
			if over = bytes.HasPrefix(lines, []byte(`{"type":"exit"`)); !over {
				_, _ = sum.Write(lines)
			}
			var last line
			start := bytes.LastIndexByte(lines[:len(lines)-1], '\n') + 1
			err := json.Unmarshal(lines[start:], &last)
			seq = last.Seq
			return err
		})
		require.NoError(r, err)
	}
	return sum.Sum32()
}

// The time from a start to the first byte that a reader has.
func BenchmarkFirstByte(b *testing.B) {
	r := newRig(b, modelstest.NewSQLite(b))
	s, stop := r.replica(`echo up; while [ ! -e "$HOME/go" ]; do sleep 0.01; done`)
	defer stop()
	for b.Loop() {
		started := r.start(s)
		got := make(chan struct{})
		var once sync.Once
		err := s.Read(r.Context(), session.Reading{SessionID: started.ID, Follow: true, Until: time.Now().Add(time.Minute)}, func(lines []byte) error {
			if len(lines) > 0 {
				once.Do(func() {
					close(got)
					b.StopTimer()
					require.NoError(b, os.WriteFile(filepath.Join(r.home, "go"), nil, 0o600))
				})
			}
			return nil
		})
		require.NoError(b, err)
		<-got
		require.NoError(b, os.Remove(filepath.Join(r.home, "go")))
		b.StartTimer()
	}
}
