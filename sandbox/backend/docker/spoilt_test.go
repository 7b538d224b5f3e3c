package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/tests/dockerengine"
)

// spoilt is the real engine behind a proxy that answers some calls in its place.
type spoilt struct {
	url string

	mu     sync.Mutex
	faults []*fault
	calls  []string // method and path without the version
}

// fault is what happens to the next times calls of a method and path.
type fault struct {
	method  string
	path    *regexp.Regexp
	times   int
	status  int
	message string
	pass    bool                 // the engine carries the call out, and only its answer is lost
	edit    func(map[string]any) // of the engine's own answer
}

func spoil(t *testing.T, faults ...*fault) *spoilt {
	t.Helper()
	socket, ok := strings.CutPrefix(dockerengine.Host(t), "unix://")
	require.True(t, ok, "the engine of the tests is a socket")
	s := &spoilt{faults: faults}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		Transport:      transport,
		ModifyResponse: edited,
		FlushInterval:  -1,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := s.take(r)
		switch {
		case f != nil && f.edit != nil:
			proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), editKey{}, f.edit)))
			return
		case f != nil && f.pass:
			proxy.ServeHTTP(httptest.NewRecorder(), r)
		case f == nil:
			proxy.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.status)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": f.message})
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	s.url = strings.Replace(server.URL, "http://", "tcp://", 1)
	return s
}

type editKey struct{}

func edited(r *http.Response) error {
	edit, ok := r.Request.Context().Value(editKey{}).(func(map[string]any))
	if !ok {
		return nil
	}
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return err
	}
	edit(body)
	raw, err := json.Marshal(body)
	r.Body = io.NopCloser(bytes.NewReader(raw))
	r.ContentLength = int64(len(raw))
	r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	return err
}

// take notes a call and returns the fault that it meets.
func (s *spoilt) take(r *http.Request) *fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := regexp.MustCompile(`^/v[0-9.]+`).ReplaceAllString(r.URL.Path, "")
	s.calls = append(s.calls, r.Method+" "+path)
	for _, f := range s.faults {
		if f.times > 0 && f.method == r.Method && f.path.MatchString(path) {
			f.times--
			return f
		}
	}
	return nil
}

// count is how many calls began so.
func (s *spoilt) count(prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, call := range s.calls {
		if strings.HasPrefix(call, prefix) {
			n++
		}
	}
	return n
}

// openSpoilt is open behind faults.
func openSpoilt(t *testing.T, faults ...*fault) (*rig, *spoilt) {
	t.Helper()
	s := spoil(t, faults...)
	return open(t, func(c *Config) { c.Host = s.url }), s
}
