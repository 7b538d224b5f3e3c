package bench

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/tests/bench/reclaimtree"
)

// boxMemory is the most memory, in MiB, that the built agent server has resident on a tree: its pass at start takes all caches,
// while a client asks for the status and for plans over HTTP.
func boxMemory(b *testing.B, tree reclaimtree.Tree) float64 {
	b.Helper()
	program, portFile := filepath.Join(b.TempDir(), "agentserver"), filepath.Join(b.TempDir(), "port")
	run(b, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "automation/cmd/agentserver")
	server := exec.Command(program, "--host", "127.0.0.1", "--port", "0", "--port-file", portFile)
	server.Env = append(os.Environ(), "HOME="+tree.Home, "OH_PERSISTENCE_DIR="+tree.State, "OH_CONVERSATIONS_PATH="+tree.Histories,
		"OH_CONVERSATION_RUNTIME=docker", "OH_SESSION_API_KEYS_0=key")
	var said bytes.Buffer
	server.Stderr = &said
	require.NoError(b, server.Start())
	defer func() {
		require.NoError(b, server.Process.Signal(syscall.SIGTERM))
		require.NoError(b, server.Wait(), said.String())
	}()
	var port []byte
	until(b, func() bool { port, _ = os.ReadFile(portFile); return len(port) > 0 })
	url := "http://127.0.0.1:" + strings.TrimSpace(string(port)) + "/api/storage"
	const plan = `{"dry_run":true,"tier":"dependencies"}`
	for range 3 {
		ask(b, http.MethodGet, url, "")
		ask(b, http.MethodPost, url+"/reclaim", plan)
	}
	caches := filepath.Join(tree.Runtimes, tree.IDs[len(tree.IDs)-1], "persistence/.cache/pip")
	until(b, func() bool { _, err := os.Lstat(caches); return err != nil })
	require.NoError(b, emptied(filepath.Join(tree.State, ".agent-server-trash")))
	ask(b, http.MethodGet, url, "")
	_, memory := memoryOf(b, server.Process.Pid)
	return memory
}

// until waits for something, looking now and then.
func until(b *testing.B, reached func() bool) {
	b.Helper()
	require.Eventually(b, reached, 2*time.Minute, 5*time.Millisecond)
}

// ask makes one request to the agent server, which must succeed.
func ask(b *testing.B, method, url, body string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(b, err)
	request.Header.Set("X-Session-API-Key", "key")
	request.Header.Set("Content-Type", "application/json")
	response, err := new(http.Client).Do(request)
	require.NoError(b, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, response.StatusCode, string(answer))
}
