package router

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"automation/models"
	"automation/sandbox"
)

// dueHeader carries the date at which the box is deleted in every answer of the proxy.
const dueHeader = "X-Sandbox-Cleanup-Due-At"

// startWait is how long a request waits for a box to wake; longer, and the caller comes back.
const startWait = 60 * time.Second

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     15 * time.Second,
	}
}

// proxySandbox is ANY /v1/sandboxes/{id}/proxy/{path}: a request into the box with the caller's login. The box is resumed, and
// is attached until the answer has ended. The caller's credentials stay here and the box's key stays inside.
func (s *server) proxySandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.managed(r, who)
	if err != nil {
		return err
	}
	rest, err := s.proxyPath(r)
	if err != nil {
		return err
	}
	b, leave, err := s.enter(r.Context(), b, who)
	if err != nil {
		return err
	}
	defer leave()
	target, err := url.Parse(b.URL)
	if err != nil || target.Host == "" {
		return badGateway("The sandbox has no usable address")
	}
	if due := optStamp(b.DueAt); due != nil {
		text, _ := due.MarshalText()
		w.Header().Set(dueHeader, string(text))
	}
	return s.forward(w, r, target, rest, b.SessionKey)
}

// enter attaches the caller to the box, before it is woken so that nothing suspends it in between, and returns it as it runs.
// leave is called once, when the caller has left.
func (s *server) enter(ctx context.Context, b *models.Sandbox, who Caller) (inside *models.Sandbox, leave func(), err error) {
	if b.Desired == models.WantDeleted {
		return nil, nil, models.ErrDeletionOrdered
	}
	if b.Observed == models.SeenDeleted || b.Observed == models.SeenMissing {
		return nil, nil, sandbox.ErrGone
	}
	waiting, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	if leave, err = s.Access.Attach(waiting, b.ID); err != nil {
		return nil, nil, err
	}
	if inside, err = s.Access.Enter(waiting, who.OrgID, b.ID, who.name()); err == nil {
		return inside, leave, nil
	}
	leave()
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
	if late || errors.Is(err, sandbox.ErrNotReady) || errors.Is(err, sandbox.ErrUnreachable) {
		err = unavailable("sandbox_starting", "The sandbox is still starting", 5*time.Second)
	}
	return nil, nil, err
}

// proxyPath is what follows …/proxy, still escaped. Dot segments are refused: the box may share its host with others, told
// apart by the path.
func (s *server) proxyPath(r *http.Request) (string, error) {
	base := strings.TrimRight(s.Config.HTTP.BasePath, "/") + "/v1/sandboxes/"
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), base), "/")
	rest = strings.TrimPrefix(rest, "proxy")
	plain, err := url.PathUnescape(rest)
	if err != nil {
		return "", badRequest("The path is not escaped properly")
	}
	for segment := range strings.FieldsFuncSeq(plain, func(c rune) bool { return c == '/' || c == '\\' }) {
		if segment == ".." || segment == "." {
			return "", badRequest("The path must not contain dot segments")
		}
	}
	return rest, nil
}

// withheld are the caller's headers that a box does not see.
var withheld = []string{"Authorization", "Cookie", "X-Session-Api-Key", "X-Org-Id", "Upgrade", "Forwarded"}

// forward sends the request to the box and streams its answer.
func (s *server) forward(w http.ResponseWriter, r *http.Request, target *url.URL, rest, key string) error {
	var failed error
	prefix := strings.TrimSuffix(r.URL.EscapedPath(), rest)
	through := &httputil.ReverseProxy{
		Transport:     s.transport,
		FlushInterval: -1, // whatever comes is passed on at once
		ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = target.Scheme, target.Host
			p.Out.URL.RawPath = strings.TrimRight(target.EscapedPath(), "/") + rest
			p.Out.URL.Path, _ = url.PathUnescape(p.Out.URL.RawPath) // proxyPath has checked it
			p.Out.Host = ""
			for _, name := range withheld {
				p.Out.Header.Del(name)
			}
			if key != "" {
				p.Out.Header.Set("X-Session-API-Key", key)
			}
		},
		ModifyResponse: func(answer *http.Response) error {
			if isUnauthorized(answer.StatusCode) {
				return errors.New("the box refused its key")
			}
			answer.Header.Del("Set-Cookie")
			answer.Header.Del("X-Session-Api-Key")
			for name := range answer.Header { // who may read it is said by us
				if strings.HasPrefix(name, "Access-Control-") {
					answer.Header.Del(name)
				}
			}
			moveLocation(answer.Header, target, prefix)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	body := &steady{ReadCloser: r.Body, control: http.NewResponseController(w), within: s.bodyWithin()}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = body
	}
	through.ServeHTTP(w, r)
	switch {
	case failed == nil:
		return nil
	case body.stalled.Load():
		return tooSlow(s.bodyWithin())
	case r.Context().Err() != nil:
		return r.Context().Err()
	case isDial(failed):
		return unavailable("sandbox_agent_unavailable", "The sandbox does not answer", 5*time.Second)
	}
	s.log.WarnContext(r.Context(), "proxy into a box failed", "request_id", requestID(r),
		"workspace_id", chi.URLParam(r, "id"), "error", failed)
	return badGateway("The sandbox broke off or refused its key")
}

func isDial(err error) bool {
	op := new(net.OpError)
	return errors.As(err, &op) && op.Op == "dial"
}

// moveLocation makes a redirect inside the box one inside the proxy, and keeps the box's address to itself.
func moveLocation(h http.Header, target *url.URL, prefix string) {
	to, err := url.Parse(h.Get("Location"))
	if err != nil || h.Get("Location") == "" || to.Host != "" && to.Host != target.Host {
		return
	}
	if to.Host == "" && !strings.HasPrefix(to.Path, "/") {
		return // relative to where the caller is
	}
	moved := prefix + strings.TrimPrefix(to.EscapedPath(), strings.TrimRight(target.EscapedPath(), "/"))
	if to.RawQuery != "" {
		moved += "?" + to.RawQuery
	}
	if to.Fragment != "" {
		moved += "#" + to.EscapedFragment()
	}
	h.Set("Location", moved)
}
