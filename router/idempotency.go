package router

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"automation/models"
)

// A POST that may be sent again without being done again: its caller names it by an Idempotency-Key, and for a day the same
// request with that key gets the first answer. A request that broke off in between is never repeated: whether it was done is
// for its caller to see.

var plainKey = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)

// keyShape is plainKey in the words of JSON Schema.
var keyShape = schema{"type": "string", "minLength": 1, "maxLength": 255}

// largestBody bounds what a request with a key may carry, in bytes.
const largestBody = max(largestJSON, largestUpload)

// brokenOffAfter is when a request without an answer is no longer taken for one that is still being worked on: longer than any
// of them takes.
const brokenOffAfter = 5 * time.Minute

// repeatable reports whether requests of a route may bring a key. An answer with a secret is not kept, and routes of customers
// find out themselves who asks.
func (line route) repeatable() bool {
	return line.method == http.MethodPost && line.access != callback && line.access != public && !line.secret
}

// once lets requests with the same key through to next only once.
func (s *server) once(next handler) handler {
	return func(w http.ResponseWriter, r *http.Request, who Caller) error {
		given, named := r.Header["Idempotency-Key"]
		if !named {
			return next(w, r, who)
		}
		if len(given) != 1 || !plainKey.MatchString(given[0]) {
			return badRequest("Idempotency-Key must be 1 to 255 visible ASCII characters without spaces")
		}
		body, err := s.readBody(w, r, largestBody)
		if err != nil {
			return err
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		request := &models.Request{OrgID: who.OrgID, UserID: who.UserID, Key: given[0], Fingerprint: fingerprint(r, body)}
		earlier, err := s.Store.BeginRequest(r.Context(), request)
		switch {
		case err != nil:
			return err
		case earlier != nil:
			return s.repeat(w, earlier, request)
		}
		return s.first(w, r, who, request, next)
	}
}

// fingerprint tells requests apart that use the same key.
func fingerprint(r *http.Request, body []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s\n%s\n", r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// first does what a request asks for and remembers its answer before the caller gets it. Of a request that was refused nothing
// is remembered; of one that failed in a way that nobody expected, that it began.
func (s *server) first(w http.ResponseWriter, r *http.Request, who Caller, request *models.Request, next handler) error {
	kept := &keeper{header: w.Header()}
	err := next(kept, r, who)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), rememberWithin)
	defer cancel()
	if err != nil {
		if p := asProblem(err); p != nil && !p.fault {
			s.remembering(ctx, s.Store.ForgetRequest(ctx, request))
		}
		return err
	}
	request.Status, request.ContentType, request.Answer = kept.status, w.Header().Get("Content-Type"), kept.body.Bytes()
	s.remembering(ctx, s.Store.AnswerRequest(ctx, request))
	return answerAs(w, request)
}

// rememberWithin bounds the write of an answer.
const rememberWithin = 10 * time.Second

// remembering logs why a request stays without an answer: what it asked for was done, or not, all the same.
func (s *server) remembering(ctx context.Context, err error) {
	if err != nil {
		s.log.WarnContext(ctx, "request not remembered", "request_id", RequestID(ctx), "error", err)
	}
}

// repeat answers a request whose key was used before.
func (s *server) repeat(w http.ResponseWriter, earlier, request *models.Request) error {
	switch {
	case earlier.Fingerprint != request.Fingerprint:
		return unprocessable("Idempotency-Key was used for another request")
	case earlier.Status != 0:
		w.Header().Set("Content-Type", earlier.ContentType)
		w.Header().Set("Idempotency-Replayed", "true")
		return answerAs(w, earlier)
	case s.Store.Now().Sub(earlier.BegunAt) < brokenOffAfter:
		p := conflict("request_in_progress", "The request with this Idempotency-Key is still being worked on")
		p.retryAfter = time.Second
		return p
	}
	return conflict("request_broken_off", "The request with this Idempotency-Key broke off: look whether it was done, then use another key")
}

// keeper is a ResponseWriter that keeps an answer back. Its headers are those of the answer that is written in the end.
type keeper struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (k *keeper) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter.
func (k *keeper) WriteHeader(status int) {
	if k.status == 0 {
		k.status = status
	}
}

// Write implements http.ResponseWriter.
func (k *keeper) Write(p []byte) (int, error) {
	k.WriteHeader(impliedStatus)
	return k.body.Write(p)
}
