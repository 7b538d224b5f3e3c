package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

type contextKey struct{}

// RequestID names the request that ctx belongs to, in its answer and in every line logged for it; "" where it is none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(contextKey{}).(string)
	return id
}

func requestID(r *http.Request) string { return RequestID(r.Context()) }

var plainID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// Unwrap lets http.ResponseController flush and hijack.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) wrote() bool { return w.status != 0 }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= impliedStatus {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = impliedStatus
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// record gives each request an id (the caller's, when it is a plain one), logs it when it is done, and turns a panic into the
// contract's plain 500. Probes are not logged.
func (s *server) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !plainID.MatchString(id) {
			id = uuid.Must(uuid.NewV7()).String()
		}
		w.Header().Set("X-Request-Id", id)
		r, span := traced(r.WithContext(context.WithValue(r.Context(), contextKey{}, id)))
		s.limitBody(w, r)
		rec, began := &recorder{ResponseWriter: w}, time.Now()
		defer func() {
			broken, begun := recover(), rec.wrote()
			cut := isAbort(broken)
			if broken != nil && !cut {
				s.log.ErrorContext(r.Context(), "panic in a handler", "request_id", id, "error", fmt.Sprint(broken), "stack", string(debug.Stack()))
				if !begun {
					internalError(rec)
				}
			}
			s.answered(r, rec, span, time.Since(began))
			if cut || broken != nil && begun {
				panic(http.ErrAbortHandler) // the connection is cut, so that nobody takes the answer for whole
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

func isAbort(broken any) bool {
	err, isError := broken.(error)
	return isError && errors.Is(err, http.ErrAbortHandler)
}

// answered ends the span of a request, counts it, and logs it; probes are not logged.
func (s *server) answered(r *http.Request, rec *recorder, span trace.Span, took time.Duration) {
	route := chi.RouteContext(r.Context()).RoutePattern()
	if s.Observe != nil {
		s.Observe(r.Context(), route, r.Method, rec.status, took)
	}
	if !isProbe(r.URL.Path) {
		s.log.InfoContext(r.Context(), "request", "request_id", requestID(r), "method", r.Method, "route", route,
			"status_code", rec.status, "bytes", rec.bytes, "duration_ms", took.Milliseconds())
	}
	endSpan(span, r.Method, route, rec.status)
}

// onlyLoopback holds on a listener that only this machine reaches: a page of another site, whose name was pointed here, must
// not reach the API with the browser's help. The host of the configured base URL is let in too.
func (s *server) onlyLoopback(next http.Handler) http.Handler {
	if !s.Config.Loopback() {
		return next
	}
	public := ""
	if u, err := url.Parse(s.Config.HTTP.BaseURL); err == nil {
		public = u.Hostname()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host := hostOf(r.Host); !isProbe(r.URL.Path) && !isLoopbackHost(host) && !strings.EqualFold(host, public) {
			s.fail(w, r, true, forbidden("The Host header must name this machine"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func hostOf(hostPort string) string {
	if host, _, err := net.SplitHostPort(hostPort); err == nil {
		return host
	}
	return strings.Trim(hostPort, "[]")
}

func isLoopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
