package sandbox_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

func TestS3_003_ALongCommandIsSeenBehindManyThatCameAfterIt(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	command := func(id string, timeout int) string {
		return fmt.Sprintf(`{"id":%q,"timestamp":"2026-03-01T08:00:00Z","timeout":%d}`, id, timeout)
	}
	var short []string
	for n := range 100 {
		short = append(short, command(strconv.Itoa(n), 1))
	}
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch {
		case r.URL.Path == "/server_info":
			_, _ = io.WriteString(w, `{"idle_time":10000}`)
		case r.URL.Path != "/api/bash/bash_events/search":
			http.NotFound(w, r)
		case query.Get("kind__eq") == "BashOutput":
			_, _ = io.WriteString(w, `{"items":[]}`)
		case query.Get("page_id") == "":
			_, _ = io.WriteString(w, `{"items":[`+strings.Join(short, ",")+`],"next_page_id":"second"}`)
		default:
			_, _ = io.WriteString(w, `{"items":[`+command("server", 1e8)+`]}`)
		}
	}))
	defer box.Close()
	work, err := sandbox.Agent{URL: box.URL, HTTP: box.Client()}.Work(t.Context(), now, time.Hour)
	require.NoError(t, err)
	require.Equal(t, models.HeldCommand, work.Running)
}
