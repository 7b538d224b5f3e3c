package agentserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
)

// methods are the handlers of one path. Any other method is 405 with the list of those there are; HEAD is no alias of GET
// (recorded: file_download_head).
type methods map[string]http.HandlerFunc

// ServeHTTP calls the handler of the request's method.
func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if handler, ok := m[r.Method]; ok {
		handler(w, r)
		return
	}
	w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(m)), ", "))
	refuse(w, http.StatusMethodNotAllowed, "Method Not Allowed")
}

// routes is the whole table. The open part answers without a key; 401 comes before any look at the request.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, handlers := range map[string]methods{
		"/{$}":         {"GET": s.serverInfo},
		"/alive":       {"GET": alive},
		"/health":      {"GET": alive},
		"/ready":       {"GET": ready},
		"/server_info": {"GET": s.serverInfo},
	} {
		mux.Handle(pattern, handlers)
	}
	for pattern, handlers := range s.sockets() {
		mux.Handle(pattern, handlers)
	}
	for pattern, handlers := range s.api() {
		guarded := make(methods, len(handlers))
		for method, handler := range handlers {
			guarded[method] = s.authorized(handler)
		}
		mux.Handle(pattern, guarded)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { notFound(w) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.hostAllowed(r.Host) {
			refuse(w, http.StatusForbidden, "Host is not this machine")
			return
		}
		// The mux would redirect an unclean path; the contract has no such answer.
		if clean := path.Clean(r.URL.Path); clean != strings.TrimSuffix(r.URL.Path, "/") && r.URL.Path != "/" {
			notFound(w)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// authorized lets a request through that carries one of the session keys.
func (s *Server) authorized(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.keys.open(r.Header.Get("X-Session-API-Key")) {
			refuse(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		next(w, r)
	}
}

// keyring holds the session keys by their digests, so that comparing tells nothing of their length either.
type keyring [][sha256.Size]byte

func newKeyring(keys []string) keyring {
	ring := make(keyring, 0, len(keys))
	for _, key := range keys {
		if key != "" { // an empty key must never authenticate
			ring = append(ring, sha256.Sum256([]byte(key)))
		}
	}
	return ring
}

// open reports whether key is one of the ring, in a time that depends neither on which nor on how much of it is right. A
// ring without keys is open: the server then listens on loopback only.
func (k keyring) open(key string) bool {
	if len(k) == 0 {
		return true
	}
	digest := sha256.Sum256([]byte(key))
	found := 0
	for i := range k {
		found |= subtle.ConstantTimeCompare(k[i][:], digest[:])
	}
	return found == 1
}

// hostAllowed keeps a page of a browser on this machine away from a server without keys: by a name that it made resolve to
// loopback it could reach it, but not with a Host of loopback.
func (s *Server) hostAllowed(host string) bool {
	if len(s.keys) > 0 {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return isLoopback(host)
}
