package router

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// What a client has read can be named: an answer with one object carries an ETag, If-None-Match asks for another one than
// that, and a request with If-Match changes only the object that was seen.

// version names what an object says, but for what changes with the clock and with every look at it.
func version(v any) (string, error) {
	switch o := v.(type) {
	case runObject:
		o.Cleanup.SecondsLeft = nil
		v = o
	case sandboxObject:
		o.SuspendedSeconds, o.Cleanup.SecondsLeft, o.ObservedAt = nil, nil, nil
		v = o
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:8]) + `"`, nil
}

// one answers with an object and its version.
func one(w http.ResponseWriter, r *http.Request, v any) error {
	tag, err := version(v)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", tag)
	if r.Method == http.MethodGet && names(r.Header.Values("If-None-Match"), tag, true) {
		notModified(w)
		return nil
	}
	return ok(w, v)
}

// names reports whether a header names the version tag, or any; weak says that a weak name will do.
func names(header []string, tag string, weak bool) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(header, ","), ","), func(name string) bool {
		name = strings.TrimSpace(name)
		if weak {
			name = strings.TrimPrefix(name, "W/")
		}
		return name == tag || name == "*"
	})
}

// matches is nil where a request wants v changed as it is.
func matches(r *http.Request, v any) error {
	wanted := r.Header.Values("If-Match")
	if len(wanted) == 0 {
		return nil
	}
	tag, err := version(v)
	if err == nil && !names(wanted, tag, false) {
		return changedMeanwhile(tag)
	}
	return err
}

// changes reports whether requests of a route change the object that its path names.
func (line route) changes() bool {
	return strings.Contains(line.path, "{id}") && line.access != callback && line.method != http.MethodGet && line.method != anyMethod
}

// ifMatch lets a request through to next when the object in its path is the one that it names. What the path names wrongly is
// for next to tell.
func (s *server) ifMatch(about string, next handler) handler {
	return func(w http.ResponseWriter, r *http.Request, who Caller) error {
		if len(r.Header.Values("If-Match")) > 0 {
			if v, err := s.shown(about, r, who); err == nil && v != nil {
				if err := matches(r, v); err != nil {
					return err
				}
			}
		}
		return next(w, r, who)
	}
}

// shown is the object that GET answers for what the path names.
func (s *server) shown(about string, r *http.Request, who Caller) (any, error) {
	switch about {
	case "automation":
		a, err := s.automation(r, who)
		if err != nil {
			return nil, err
		}
		return showAutomation(a), nil
	case "run":
		run, err := s.run(r, who)
		if err != nil {
			return nil, err
		}
		return s.showRun(run), nil
	case "sandbox":
		b, err := s.box(r, who)
		if err != nil {
			return nil, err
		}
		return s.showSandbox(b), nil
	case "upload":
		u, err := s.upload(r, who)
		if err != nil {
			return nil, err
		}
		return s.showUpload(u), nil
	}
	return nil, nil
}
