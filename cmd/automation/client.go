package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"automation/config"
)

// apiPath is where the API lies below the URL of a service.
const apiPath = "/api/automation"

// callWithin bounds one call. Only what wakes a box or has it work takes longer.
const (
	callWithin  = 30 * time.Second
	boxesWithin = 5 * time.Minute
)

// mostAnswer bounds an answer that is read whole; run output is at most 8 MiB of raw bytes, in base64.
const mostAnswer = 64 << 20

// Errors of reaching the service.
var (
	// errUnreachable means that nothing answers, or something that is not this service.
	errUnreachable = errors.New("the service cannot be reached")
	// errNoKey means that there is nothing to log in with.
	errNoKey = errors.New("no login: set AUTOMATION_TOKEN or AUTOMATION_TOKEN_FILE")
)

// client calls the HTTP API of a service, as every client command and the demo do.
type client struct {
	root      string // URL of the API, without what is in below
	below     string // what the paths of json begin with: /v1
	token     string
	keyHeader string // which header has the token: Authorization, as a bearer, or the one of boxes
	http      *http.Client
}

func newClient(root, token string) *client {
	return &client{root: root, below: "/v1", token: token, keyHeader: "Authorization", http: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: 30 * time.Second},
	}}
}

// close lets go of connections that are kept for the next call.
func (c *client) close() { c.http.CloseIdleConnections() }

// connect finds the service: AUTOMATION_URL and AUTOMATION_TOKEN (or the file that AUTOMATION_TOKEN_FILE names), else this
// machine's own service by its configuration and the key in its data folder. That key is sent to this machine only.
func (io Streams) connect() (*client, error) {
	env := config.Environment(io.Env)
	root, err := io.serviceURL(env["AUTOMATION_URL"])
	if err != nil {
		return nil, err
	}
	token, err := io.token(env, root)
	if err != nil {
		return nil, err
	}
	return newClient(root, token), nil
}

// serviceURL is the URL of the API. An AUTOMATION_URL may end in /api/automation or not.
func (io Streams) serviceURL(configured string) (string, error) {
	if configured == "" {
		cfg, err := config.Load(io.Env)
		if err != nil {
			return "", err
		}
		host, port, err := net.SplitHostPort(cfg.HTTP.Listen)
		if err != nil {
			return "", fmt.Errorf("AUTOMATION_LISTEN: %w", err)
		}
		if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		return "http://" + net.JoinHostPort(host, port) + cfg.HTTP.BasePath, nil
	}
	u, err := url.Parse(configured)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", settingError("AUTOMATION_URL", configured, "want an http or https URL, e.g. http://127.0.0.1:8000")
	}
	root := strings.TrimRight(u.String(), "/")
	if !strings.HasSuffix(root, apiPath) {
		root += apiPath
	}
	return root, nil
}

// settingError is a problem with one variable of a client command.
func settingError(name, value, want string) error {
	return &config.Error{Problems: []config.Problem{{Name: name, Value: value, Set: true, Want: want}}}
}

// token finds what to log in with.
func (io Streams) token(env map[string]string, root string) (string, error) {
	if token, file := env["AUTOMATION_TOKEN"], env["AUTOMATION_TOKEN_FILE"]; token != "" && file != "" {
		return "", settingError("AUTOMATION_TOKEN_FILE", file, "want only one of AUTOMATION_TOKEN and AUTOMATION_TOKEN_FILE")
	} else if token != "" {
		return token, nil
	} else if file != "" {
		token, err := readKey(file)
		if err != nil {
			return "", settingError("AUTOMATION_TOKEN_FILE", file, "want a file that can be read: "+err.Error())
		}
		return token, nil
	}
	if !isLocal(root) {
		return "", errNoKey
	}
	cfg, err := config.Load(io.Env)
	if err != nil {
		return "", err
	}
	if key := cfg.Auth.LocalAPIKey.Reveal(); key != "" {
		return key, nil
	}
	path := filepath.Join(cfg.Storage.DataDir, apiKeyFile)
	key, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w; %s, which serve makes, is not there", errNoKey, path)
	}
	return key, err
}

// isLocal reports whether a URL names this machine.
func isLocal(root string) bool {
	u, err := url.Parse(root)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return strings.EqualFold(u.Hostname(), "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// apiError is an answer that is not a success.
type apiError struct {
	status  int
	code    string
	message string
}

// Error returns what the service said; of a confirmation that it wants, how it is given on the command line.
func (e *apiError) Error() string {
	if e.code == "confirmation_needed" {
		return strings.ReplaceAll(e.message, "confirm=", "--confirm ")
	}
	return e.message
}

// get reads an object.
func (c *client) get(ctx context.Context, path string, into any) error {
	return c.json(ctx, http.MethodGet, path, nil, into)
}

// json makes one call below c.below with a JSON body; into may be nil, or a *json.RawMessage for the answer as it is.
func (c *client) json(ctx context.Context, method, path string, body, into any) error {
	var raw []byte
	kind := ""
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
		kind = "application/json"
	}
	answer, err := c.call(ctx, method, c.below+path, kind, raw)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%w at %s: its answer is not JSON", errUnreachable, c.root)
	}
	return nil
}

// call makes one call and returns the body of a success; the error is an *apiError or errUnreachable.
func (c *client) call(ctx context.Context, method, path, kind string, body []byte) ([]byte, error) {
	got, err := c.exchange(ctx, method, path, kind, body)
	if err != nil {
		return nil, err
	}
	if got.code >= http.StatusMultipleChoices {
		return nil, c.refusal(got)
	}
	return got.body, nil
}

// answer is what was answered, read whole.
type answer struct {
	code      int
	status    string // the code in words
	requestID string
	body      []byte
}

// exchange makes one call and returns whatever is answered.
func (c *client) exchange(ctx context.Context, method, path, kind string, body []byte) (got answer, err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callWithin)
		defer cancel()
	}
	request, err := http.NewRequestWithContext(ctx, method, c.root+path, bytes.NewReader(body))
	if err != nil {
		return got, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	c.login(request)
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return got, c.unreached(err)
	}
	defer response.Body.Close()
	got = answer{code: response.StatusCode, status: response.Status, requestID: response.Header.Get("X-Request-Id")}
	if got.body, err = io.ReadAll(io.LimitReader(response.Body, mostAnswer)); err != nil {
		return got, c.unreached(err)
	}
	return got, nil
}

// login puts the token into a request.
func (c *client) login(request *http.Request) {
	switch {
	case c.token == "":
	case c.keyHeader == "Authorization":
		request.Header.Set(c.keyHeader, "Bearer "+c.token)
	default:
		request.Header.Set(c.keyHeader, c.token)
	}
}

// unreached keeps the cause of an error of net/http, without the method and URL that it repeats.
func (c *client) unreached(err error) error {
	if outer := (*url.Error)(nil); errors.As(err, &outer) {
		err = outer.Err
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w at %s: %w", errUnreachable, c.root, err)
}

// refusal reads the error of an answer: the shape of our own routes, the contract's text, or the contract's list of issues.
func (c *client) refusal(got answer) error {
	var body struct {
		Error *struct {
			Code      string `json:"code"`
			Message   string `json:"message"`
			RequestID string `json:"request_id"`
		} `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	refused := &apiError{status: got.code, message: got.status}
	if json.Unmarshal(got.body, &body) != nil || body.Error == nil && body.Detail == nil {
		if got.code != http.StatusInternalServerError {
			return fmt.Errorf("%w at %s: the answer there is %s and not the service's", errUnreachable, c.root, got.status)
		}
		refused.message += " (request " + got.requestID + "; the log of the service says why)"
		return refused
	}
	if body.Error != nil {
		refused.code, refused.message = body.Error.Code, body.Error.Message
		return refused
	}
	var issues []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	}
	if json.Unmarshal(body.Detail, &refused.message) == nil || json.Unmarshal(body.Detail, &issues) != nil {
		return refused
	}
	var all []string
	for _, issue := range issues {
		var at []string
		for _, part := range issue.Loc {
			at = append(at, fmt.Sprint(part))
		}
		all = append(all, strings.Join(at, ".")+": "+issue.Msg)
	}
	refused.message = strings.Join(all, "; ")
	return refused
}
