package router

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"automation/models"
	"automation/sandbox"
)

// dueHeader carries the date at which the box is deleted in every answer of the proxy.
const dueHeader = "X-Sandbox-Cleanup-Due-At"

// startWait is how long a request waits for a box to wake; longer, and the caller comes back.
const startWait = 60 * time.Second

// errKeyRefused says that a box did not know the key that its row has, and did nothing.
var errKeyRefused = errors.New("the box refused its key")

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     15 * time.Second,
	}
}

// proxySandbox is ANY /v1/sandboxes/{id}/proxy/{path}: a request, a stream or a WebSocket into the box with the caller's login.
// The box is resumed, and is held until the answer has ended. The caller's credentials stay here and the box's key stays inside.
func (s *server) proxySandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.managed(r, who)
	if err != nil {
		return err
	}
	return s.proxyInto(w, r, b, "/v1/sandboxes/", who)
}

// proxyRuntime is ANY /v1/runtimes/{conversation_id}/proxy/{path}: the same, into the box that the conversation has now. A box
// that was lost is made anew, with the conversation's keys and workspace.
func (s *server) proxyRuntime(w http.ResponseWriter, r *http.Request, who Caller) error {
	runtime, err := s.runtime(r, who)
	if err != nil {
		return err
	}
	if !who.canManage(runtime.UserID) {
		return forbidden("Only admins, owners, or the creator of the runtime can enter it")
	}
	if b := runtime.Box; b == nil || b.NextStepAt == nil && (b.Observed == models.SeenMissing || b.Observed == models.SeenFailed) {
		if runtime, _, err = s.Store.OpenRuntime(r.Context(), *runtime, who.name()); err != nil {
			return err
		}
		nudge(s.Nudge.Settle)
	}
	return s.proxyInto(w, r, runtime.Box, "/v1/runtimes/", who)
}

// proxyInto passes the request on to a box; at is where the route begins, below the base path.
func (s *server) proxyInto(w http.ResponseWriter, r *http.Request, b *models.Sandbox, at string, who Caller) error {
	rest, err := s.proxyPath(r, at)
	if err == nil {
		err = s.sameSite(r)
	}
	if err != nil {
		return err
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &steady{ReadCloser: r.Body, control: http.NewResponseController(w), within: s.bodyWithin()}
	}
	err = s.pass(w, r, b, rest, who)
	_, hasBody := r.Body.(*steady)
	switch {
	case isDial(err): // nothing was sent: the box went to sleep, or died, since it was last asked
		s.Access.Doubt(b.ID)
		err = s.pass(w, r, b, rest, who)
	case errors.Is(err, errKeyRefused): // somebody else has started it anew: it has another key now (S1-047)
		s.Access.Refused(b.ID)
		if hasBody {
			return unavailable("sandbox_restarted", "The sandbox was started anew meanwhile; send the request again", time.Second)
		}
		err = s.pass(w, r, b, rest, who)
	}
	if errors.Is(err, errKeyRefused) {
		return badGateway("The sandbox refused its key")
	}
	if isDial(err) {
		return unavailable("sandbox_agent_unavailable", "The sandbox does not answer", 5*time.Second)
	}
	return err
}

// pass enters the box and passes the request on. An error that isDial says that there was nobody to take it,
// errKeyRefused that the box did not know its key.
func (s *server) pass(w http.ResponseWriter, r *http.Request, b *models.Sandbox, rest string, who Caller) error {
	b, leave, err := s.enter(r.Context(), b, who.name())
	if err != nil {
		return err
	}
	target, err := url.Parse(b.URL)
	if err != nil || target.Host == "" {
		leave()
		return badGateway("The sandbox has no usable address")
	}
	if due := optStamp(b.DueAt); due != nil {
		text, _ := due.MarshalText()
		w.Header().Set(dueHeader, string(text))
	}
	return s.forward(w, r, target, rest, b.SessionKey, leave)
}

// enter lets who ("user:<id>") into the box, which is resumed where needed and held until leave is called, once.
func (s *server) enter(ctx context.Context, b *models.Sandbox, who string) (inside *models.Sandbox, leave func(), err error) {
	switch {
	case b.Observed == models.SeenDeleted:
		return nil, nil, sandboxArchived("The sandbox was deleted; what is kept of it can still be read")
	case b.Desired == models.WantDeleted:
		return nil, nil, models.ErrDeletionOrdered
	case b.Observed == models.SeenMissing:
		return nil, nil, sandbox.ErrGone
	}
	waiting, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	if inside, leave, err = s.Access.Enter(waiting, b, who); err == nil {
		return inside, leave, nil
	}
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
	if late || errors.Is(err, sandbox.ErrNotReady) || errors.Is(err, sandbox.ErrUnreachable) {
		err = unavailable("sandbox_starting", "The sandbox is still starting", 5*time.Second)
	}
	return nil, nil, err
}

// sameSite refuses what a page of another site had the caller's browser send: it sends cookies by itself, and no rule of CORS
// holds for WebSockets and plain forms.
func (s *server) sameSite(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" || withKey(r, false) || slices.Contains(s.origins(), origin) {
		return nil
	}
	if from, err := url.Parse(origin); err == nil && from.Host != "" && strings.EqualFold(from.Host, r.Host) {
		return nil
	}
	return forbidden("Pages of this origin may not use a session cookie here")
}

// proxyPath is what follows …/proxy, still escaped. Dot segments are refused: the box may share its host with others, told
// apart by the path.
func (s *server) proxyPath(r *http.Request, at string) (string, error) {
	base := strings.TrimRight(s.Config.HTTP.BasePath, "/") + at
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
var withheld = []string{"Authorization", "Cookie", "X-Session-Api-Key", "X-Org-Id", "Forwarded"}

// forward sends the request to the box and streams its answer, or joins the two ends of a WebSocket. ended is called when that is
// over: before it returns, or when the WebSocket ends. An error that isDial means that nothing was sent.
func (s *server) forward(w http.ResponseWriter, r *http.Request, target *url.URL, rest, key string, ended func()) error {
	var failed error
	defer func() {
		if !errors.Is(failed, errJoined) {
			ended()
		}
	}()
	prefix := strings.TrimSuffix(r.URL.EscapedPath(), rest)
	through := &httputil.ReverseProxy{
		Transport:     s.transport,
		FlushInterval: -1, // whatever comes is passed on at once
		BufferPool:    buffers,
		ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Rewrite:       func(p *httputil.ProxyRequest) { rewrite(p, target, rest, key) },
		ModifyResponse: func(answer *http.Response) error {
			if isUnauthorized(answer.StatusCode) {
				return errKeyRefused
			}
			clean(answer.Header)
			moveLocation(answer.Header, target, prefix)
			if answer.StatusCode == statusSwitching {
				return s.join(w, answer, ended)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer s.Access.OnClose(cancel)() // a stream may have no end of its own
	through.ServeHTTP(w, r.WithContext(ctx))
	return s.passed(r, failed)
}

// passed is the answer of the proxy where the box's has failed.
func (s *server) passed(r *http.Request, failed error) error {
	body, _ := r.Body.(*steady)
	switch {
	case failed == nil, errors.Is(failed, errJoined):
		return nil
	case body != nil && body.stalled.Load():
		return tooSlow(s.bodyWithin())
	case r.Context().Err() != nil:
		return r.Context().Err()
	case isDial(failed), errors.Is(failed, errKeyRefused):
		return failed
	}
	s.log.WarnContext(r.Context(), "proxy into a box failed", "request_id", requestID(r), "error", failed)
	return badGateway("The sandbox broke off")
}

// rewrite makes of a caller's request the one that the box gets. Only WebSockets may change the protocol.
func rewrite(p *httputil.ProxyRequest, target *url.URL, rest, key string) {
	p.Out.URL.Scheme, p.Out.URL.Host = target.Scheme, target.Host
	p.Out.URL.RawPath = strings.TrimRight(target.EscapedPath(), "/") + rest
	p.Out.URL.Path, _ = url.PathUnescape(p.Out.URL.RawPath) // proxyPath has checked it
	p.Out.URL.RawQuery = withoutKey(p.In.URL.RawQuery)
	p.Out.Host = ""
	for _, name := range withheld {
		p.Out.Header.Del(name)
	}
	if !isSocket(p.Out) {
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
	if key != "" {
		p.Out.Header.Set("X-Session-API-Key", key)
	}
}

// withoutKey leaves a credential out of a query, which is otherwise passed on as it is: agent servers take one there for
// WebSockets, and it would be the caller's.
func withoutKey(query string) string {
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err != nil || !strings.EqualFold(plain, "session_api_key") {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

// clean takes out of a box's answer what only we say, and its key.
func clean(h http.Header) {
	for name := range h { // who may read it is said by us
		if strings.HasPrefix(name, "Access-Control-") || name == "Set-Cookie" || name == "X-Session-Api-Key" {
			h.Del(name)
		}
	}
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
