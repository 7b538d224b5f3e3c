package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"automation/sandbox"
)

// Bounds of a provider's answers.
const (
	answerBytes    = 4 << 20
	errorBytes     = 64 << 10
	shownBytes     = 300
	retryAfterMost = time.Hour // a longer wait, or one that is no time at all, is not believed
)

// jsonClient calls a provider's HTTP API: JSON in and out, bounded answers, no redirects (they would carry the credential
// elsewhere), and every answer that is no success as one of the errors of package sandbox:
//
//	401, 403         ErrRefused
//	404, 410         ErrGone
//	429              ErrQuota where quota says so, else *sandbox.ProviderError with RetryAfter
//	408, 425, 5xx, … *sandbox.ProviderError: retryable
//	other 4xx        ErrInvalid
//
// All of them wrap the *sandbox.ProviderError. An answer that is no JSON, or too long, is a plain error: nothing is known.
type jsonClient struct {
	base  string // URL without a slash at its end (S1-045)
	http  *http.Client
	quota func(status int, body []byte) bool // nil: never
	now   func() time.Time                   // for Retry-After dates
}

// request is one call. Path segments that come from elsewhere are escaped by the caller.
type request struct {
	method, path string
	query        url.Values
	header       string // name of the credential's header
	credential   string
	body         any // nil: none
	within       time.Duration
}

// newHTTP is a client for providers: proxies of the environment are used, redirects are not followed.
func newHTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// do makes a call and decodes its answer into answer; nil: whatever the body of a success is, it is not read.
func (c jsonClient) do(ctx context.Context, r request, answer any) error {
	call, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	resp, err := c.send(call, r)
	if err != nil {
		return fmt.Errorf("%s %s: %w", r.method, r.path, withoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %w", r.method, r.path, c.failure(resp, r.credential))
	}
	if answer == nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: read the answer: %w", r.method, r.path, withoutURL(err))
	case len(text) > answerBytes:
		return fmt.Errorf("%s %s: answer above %d bytes", r.method, r.path, answerBytes)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: the answer is not what it should be: %w", r.method, r.path, err)
	}
	return nil
}

func (c jsonClient) send(ctx context.Context, r request) (*http.Response, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set(r.header, r.credential)
	return c.http.Do(req)
}

// failure classes an answer outside 2xx.
func (c jsonClient) failure(resp *http.Response, credential string) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, errorBytes))
	answer := &sandbox.ProviderError{Status: resp.StatusCode, Body: shown(body, credential), RequestID: resp.Header.Get("X-Request-Id")}
	switch status := resp.StatusCode; {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		answer.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), c.now())
		if c.quota != nil && c.quota(status, body) {
			return fmt.Errorf("%w: %w", sandbox.ErrQuota, answer)
		}
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("%w: %w", sandbox.ErrRefused, answer)
	case status == http.StatusNotFound || status == http.StatusGone:
		return fmt.Errorf("%w: %w", sandbox.ErrGone, answer)
	case status == http.StatusRequestTimeout || status == http.StatusTooEarly:
	case status >= 400 && status < 500:
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, answer)
	}
	return answer
}

// shown is the start of an answer's body in one line, without the credential it may repeat.
func shown(body []byte, credential string) string {
	text := strings.ToValidUTF8(string(body), "")
	if _, secret, isPair := strings.Cut(credential, " "); isPair {
		credential = secret
	}
	if credential != "" {
		text = strings.ReplaceAll(text, credential, "[redacted]")
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > shownBytes {
		text = strings.ToValidUTF8(text[:shownBytes], "") + "…"
	}
	return text
}

// retryAfter reads the header: seconds, or a date. What is neither, or past, is 0.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	wait := time.Duration(0)
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		wait = time.Duration(min(max(seconds, 0), int64(retryAfterMost/time.Second))) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), retryAfterMost)
}

// withoutURL takes the request's address out of a transport error: it is said once, and without its query.
func withoutURL(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		return inner.Err
	}
	return err
}
