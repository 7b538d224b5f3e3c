package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestS0_043_ClientCommandsTalkToTheServiceAloneAndWithItsTokenAlone(t *testing.T) {
	var asked, sent []string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var head strings.Builder
		_ = r.Header.Write(&head)
		asked, sent = append(asked, r.Method+" "+r.URL.Path), append(sent, head.String())
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"detail":"Not Found"}`))
	}))
	defer service.Close()
	const box = "01920001-0000-7000-8000-000000000000"
	env := []string{
		"HOME=" + t.TempDir(), "AUTOMATION_URL=" + service.URL, "AUTOMATION_TOKEN=mine", "E2B_API_KEY=provider-secret",
		"DIGITALOCEAN_TOKEN=provider-secret", "HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1",
	}
	for _, line := range []string{"show " + box, "pause " + box, "rm " + box, "export " + box + " --now", "reclaim " + box} {
		var out, said bytes.Buffer
		code := Main(t.Context(), append([]string{"box"}, strings.Fields(line)...), Streams{Env: env, Out: &out, Err: &said})
		require.Equal(t, exitNotFound, code, "%s: %s", line, said.String())
	}
	require.Len(t, asked, 5, "one call a command, nothing on a timer")
	for _, head := range sent {
		require.Contains(t, head, "Authorization: Bearer mine")
		require.NotContains(t, head, "provider-secret")
	}
}
