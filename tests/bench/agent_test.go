package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The agents of customers: the built program, a box of its process backend, and readers over HTTP.

// customerOf starts a service whose boxes run command as their agent, and a box that stays awake; it returns the path of the agent.
func customerOf(b *testing.B, command string) (s *service, agent string) {
	b.Helper()
	s = newSQLite(b).serve(append(own, "AUTOMATION_CUSTOMER_AGENT_COMMAND="+command)...)
	dir := b.TempDir()
	require.NoError(b, os.WriteFile(filepath.Join(dir, "main.sh"), []byte("sleep 3600\n"), 0o600))
	packed, err := exec.Command("tar", "-C", dir, "-cz", "main.sh").Output()
	require.NoError(b, err)
	const api = "/api/automation/v1"
	answered := func(method, path, body string, fields any) {
		status, answer := s.call(method, api+path, body)
		require.Equal(b, 2, status/100, "%s %s: %s", method, path, answer)
		require.NoError(b, json.Unmarshal(answer, fields))
	}
	var made struct {
		ID      string
		Tarball string `json:"tarball_path"`
		Sandbox struct{ ID, Observed string }
	}
	answered(http.MethodPost, "/uploads?name=script", string(packed), &made)
	answered(http.MethodPost, "", fmt.Sprintf(`{"name":"bench","entrypoint":"sh main.sh","tarball_path":%q,"timeout":1800,"trigger":{"type":"cron","schedule":"0 0 1 1 *"}}`,
		made.Tarball), &made)
	answered(http.MethodPost, "/"+made.ID+"/dispatch", "", &made)
	run := made.ID
	s.await("the box runs", func() bool {
		answered(http.MethodGet, "/runs/"+run, "", &made)
		return made.Sandbox.Observed == "running"
	}, 10*time.Millisecond)
	var switched any
	answered(http.MethodPut, "/sandboxes/"+made.Sandbox.ID+"/agent-feature", `{"enabled":true}`, &switched)
	return s, "/v1/customer/tenants/" + localOrg.String() + "/sandboxes/" + made.Sandbox.ID + "/agent"
}

// begin starts the agent and returns the path of its output.
func (s *service) begin(agent string) (output string) {
	status, answer := s.call(http.MethodPost, agent, "")
	require.Equal(s.b, http.StatusAccepted, status, "%s", answer)
	var session struct {
		ID string `json:"session_id"`
	}
	require.NoError(s.b, json.Unmarshal(answer, &session))
	return agent + "/output?session_id=" + session.ID
}

// follower is a reader that leaves after a while and comes back where it was.
type follower struct {
	seq  int64
	sum  uint32 // of its lines of output
	over bool
	out  io.Writer // of what they say; nil: nobody asks
	err  error
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// read follows the output until its exit line, or until ctx ends: then no more than whole lines were taken.
func (f *follower) read(ctx context.Context, s *service, client *http.Client, output string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s&after=%d", s.base, output, f.seq), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+localKey)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	lines := bufio.NewReaderSize(response.Body, 64<<10)
	for !f.over {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return err
		}
		if err := f.take(line); err != nil {
			return err
		}
	}
	return nil
}

// take checks that a line is the next.
func (f *follower) take(line []byte) error {
	if bytes.HasPrefix(line, []byte(`{"type":"keepalive"`)) {
		return nil
	}
	_, rest, _ := bytes.Cut(line, []byte(`"seq":`)) // to decode them all would cost more than what is measured
	number, _, _ := bytes.Cut(rest, []byte(","))
	seq, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil || seq != f.seq+1 {
		return fmt.Errorf("after line %d comes %.100s", f.seq, line)
	}
	f.seq = seq
	if f.over = bytes.HasPrefix(line, []byte(`{"type":"exit"`)); f.over {
		return nil
	}
	f.sum = crc32.Update(f.sum, castagnoli, line)
	if f.out == nil {
		return nil
	}
	var said struct{ Data []byte }
	if err := json.Unmarshal(line, &said); err != nil {
		return err
	}
	_, err = f.out.Write(said.Data)
	return err
}

// all follows the output to its end, and leaves every so often.
func (f *follower) all(s *service, client *http.Client, output string, every time.Duration) {
	for over := time.Now().Add(patience); !f.over && time.Now().Before(over); {
		ctx, cancel := context.WithTimeout(context.Background(), every)
		f.err = f.read(ctx, s, client, output)
		left := ctx.Err() != nil
		cancel()
		if f.err != nil && !left {
			return
		}
	}
}

// BenchmarkAgentReaders lets two hundred readers follow one server that prints a megabyte a second. Each leaves every two seconds
// and comes back where it was; ten more never read what they asked for. memory-MiB is the most that the whole service had, late-s
// how much longer the last reader took than the server.
func BenchmarkAgentReaders(b *testing.B) {
	seconds, readers := 7, sized(200) // all of it is kept
	path := filepath.Join(b.TempDir(), "noise")
	noise := make([]byte, seconds<<20)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(noise)
	require.NoError(b, os.WriteFile(path, noise, 0o600))
	s, agent := customerOf(b, fmt.Sprintf(
		`i=0; while [ $i -lt %d ]; do dd if=%s bs=131072 skip=$i count=1 2>/dev/null; i=$((i+1)); sleep 0.125; done`, seconds*8, path))
	before, _ := s.memory()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: readers}}
	began := time.Now()
	output := s.begin(agent)
	for range 10 {
		s.stall(output)
	}
	followers := make([]follower, readers)
	var all sync.WaitGroup
	for i := range followers {
		all.Go(func() { followers[i].all(s, client, output, 2*time.Second) })
	}
	s.await("the server has ended", func() bool {
		_, answer := s.call(http.MethodGet, agent, "")
		return strings.Contains(string(answer), `"status":"stopped"`)
	}, 20*time.Millisecond)
	printed := time.Since(began)
	all.Wait()
	late := time.Since(began) - printed
	_, most := s.memory()
	whole := sha256.New()
	one := follower{out: whole}
	one.all(s, client, output, time.Minute)
	require.True(b, one.over, "%v", one.err)
	sum := sha256.Sum256(noise)
	require.Equal(b, sum[:], whole.Sum(nil), "what was printed")
	for _, f := range followers {
		require.True(b, f.over, "%v", f.err)
		require.Equal(b, one.sum, f.sum)
	}
	client.CloseIdleConnections()
	b.ReportMetric(most, "memory-MiB")
	b.ReportMetric(most-before, "readers-MiB")
	b.ReportMetric(max(late.Seconds(), 0), "late-s")
}

// stall asks for the output and never reads it.
func (s *service) stall(output string) {
	address := strings.TrimPrefix(s.base, "http://")
	conn, err := net.Dial("tcp", address)
	require.NoError(s.b, err)
	s.b.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", output, address, localKey)
	require.NoError(s.b, err)
}

// BenchmarkAgentFirstByte measures the time from the request for a server to the first byte of its output that a reader has.
func BenchmarkAgentFirstByte(b *testing.B) {
	s, agent := customerOf(b, "echo up; exec sleep 600")
	var took []time.Duration
	for range 30 {
		began := time.Now()
		output := s.begin(agent)
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		f := follower{out: writer(func() { took = append(took, time.Since(began)); cancel() })}
		_ = f.read(ctx, s, s.client, output)
		cancel()
		require.Equal(b, http.StatusOK, s.status(http.MethodDelete, agent, ""))
	}
	require.Len(b, took, 30)
	b.ReportMetric(median(took), "median-ms")
	b.ReportMetric(inMilliseconds(spreadOf(took, 0).at(.99)), "most-ms")
}

// writer is told of the first byte.
type writer func()

// Write implements io.Writer.
func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}
