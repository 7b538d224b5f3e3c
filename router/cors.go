package router

import (
	"net/http"
	"slices"
	"strings"
)

// preflightFor is how long a browser may remember the answer to a preflight, in seconds.
const preflightFor = "600"

// cors tells browsers whose pages may read the answers (contract section 1). A request with a key, or a preflight for one, is
// open to every page, for no browser sends a key by itself; cookies are let in from the configured origins only.
func (s *server) cors(next http.Handler) http.Handler {
	allowed := s.origins()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" {
			next.ServeHTTP(w, r)
			return
		}
		preflight := r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
		fine := true
		if h := w.Header(); withKey(r, preflight) || slices.Contains(allowed, "*") {
			h.Set("Access-Control-Allow-Origin", "*")
		} else {
			h.Set("Access-Control-Allow-Credentials", "true")
			h.Add("Vary", "Origin")
			if fine = slices.Contains(allowed, origin); fine {
				h.Set("Access-Control-Allow-Origin", origin)
			}
		}
		if !preflight {
			next.ServeHTTP(w, r)
			return
		}
		if wanted := r.Header.Get("Access-Control-Request-Headers"); wanted != "" {
			w.Header().Set("Access-Control-Allow-Headers", wanted)
		}
		w.Header().Set("Access-Control-Allow-Methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
		w.Header().Set("Access-Control-Max-Age", preflightFor)
		answerPreflight(w, fine)
	})
}

// origins are the configured ones, whose pages may use session cookies.
func (s *server) origins() []string {
	configured := s.Config.HTTP.CORSOrigins
	if len(configured) == 0 {
		configured = []string{s.Config.Sandbox.APIBaseURL}
	}
	allowed := make([]string, len(configured))
	for i, o := range configured {
		allowed[i] = strings.TrimRight(o, "/")
	}
	return allowed
}

// withKey reports whether a request shows an API key, or is the preflight of one that will.
func withKey(r *http.Request, preflight bool) bool {
	if !preflight {
		kind, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		return strings.EqualFold(kind, "Bearer") || r.Header.Get("X-Session-API-Key") != ""
	}
	for name := range strings.SplitSeq(r.Header.Get("Access-Control-Request-Headers"), ",") {
		if name = strings.TrimSpace(name); strings.EqualFold(name, "Authorization") || strings.EqualFold(name, "X-Session-API-Key") {
			return true
		}
	}
	return false
}
