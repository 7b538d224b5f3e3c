package tests

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// upload begins an upload, which a stopping service waits for, and returns its connection and what is left to send.
func upload(t *testing.T, s *server) (c net.Conn, answers *bufio.Reader, rest []byte) {
	t.Helper()
	address, _, _ := strings.Cut(strings.TrimPrefix(s.base, "http://"), "/")
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	body := tarball(t, "main.sh", "true")
	_, err = fmt.Fprintf(c, "POST /api/automation/v1/uploads?name=x HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/gzip\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", s.key, len(body))
	require.NoError(t, err)
	answers = bufio.NewReader(c)
	begun, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	defer begun.Body.Close()
	require.Equal(t, http.StatusContinue, begun.StatusCode, "the service is reading")
	return c, answers, body
}

// stopping waits until the service says so.
func stopping(t *testing.T, s *server) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(s.log(), `"msg":"stopping"`) }, patience, 10*time.Millisecond)
}

func TestAStoppingServiceIsNotReadyBeforeItsPortClosesAndFinishesWhatItHasBegun(t *testing.T) {
	t.Parallel()
	s := start(t)
	c, answers, rest := upload(t, s)
	ready := strings.TrimSuffix(s.base, "/v1") + "/ready"
	status := func() int {
		answer, err := http.Get(ready) //nolint:forbidigo // a prober
		if err != nil {
			return 0
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	require.Equal(t, http.StatusOK, status())
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	stopping(t, s)
	require.Equal(t, http.StatusServiceUnavailable, status(), "who asks regularly hears of it")
	require.Eventually(t, func() bool { return status() == 0 }, patience, 10*time.Millisecond, "then nothing new is accepted")
	_, err := c.Write(rest)
	require.NoError(t, err)
	answer, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusCreated, answer.StatusCode, "a request that was begun is finished")
	<-s.gone
	require.Equal(t, 0, s.cmd.ProcessState.ExitCode())
}

func TestASecondSignalEndsTheServiceAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	upload(t, s)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	stopping(t, s)
	began := time.Now()
	require.Eventually(t, func() bool {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.gone:
			return true
		default:
			return false
		}
	}, patience, 20*time.Millisecond)
	require.Less(t, time.Since(began), 5*time.Second, "the open request was not waited for")
	status, _ := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.Equal(t, syscall.SIGTERM, status.Signal())
	s.launch()
	s.call(http.MethodGet, "/runs", nil, http.StatusOK)
}
