package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/models"
	"automation/sandbox"
)

// lines is the log of a test.
type lines struct {
	t   *testing.T
	buf bytes.Buffer
	log *slog.Logger
}

func newLines(t *testing.T) *lines {
	t.Helper()
	l := &lines{t: t}
	l.log = newLog(config.Log{JSON: true}, &l.buf)
	t.Cleanup(func() { flushLog(l.log) })
	return l
}

// read returns what was written, line by line.
func (l *lines) read() []map[string]any {
	l.t.Helper()
	var all []map[string]any
	for line := range strings.Lines(l.buf.String()) {
		var v map[string]any
		require.NoError(l.t, json.Unmarshal([]byte(line), &v), line)
		all = append(all, v)
	}
	return all
}

func TestErrorsAreClassed(t *testing.T) {
	for kind, err := range map[string]error{
		"timeout": context.DeadlineExceeded, "disk_full": syscall.ENOSPC, "too_many_files": &os.SyscallError{Syscall: "accept4", Err: syscall.EMFILE},
		"box_unreachable": sandbox.ErrUnreachable, "database_unavailable": models.ErrClosed, "credential_refused": sandbox.ErrRefused,
	} {
		l := newLines(t)
		l.log.Warn("step failed", "error", fmt.Errorf("do: %w", err))
		require.Equal(t, kind, l.read()[0]["error_kind"])
	}
	l := newLines(t)
	l.log.Warn("step failed", "error", errors.New("new to everybody"))
	require.NotContains(t, l.read()[0], "error_kind")
}

func TestLinesHaveTheirKeysInOneFormAndOrder(t *testing.T) {
	l := newLines(t)
	id := uuid.New()
	log := l.log.With("component", "settler", "loop", "settle x").WithGroup("box")
	log.Info("Box is gone: looked twice", "size", 3, slog.Group("at", "place", "here"))
	l.log.With("workspace_id", id).Warn("preparing step failed",
		"step", "output", "error", fmt.Errorf("read: %w", context.DeadlineExceeded), "duration", 1500*time.Millisecond, "run_id", "r",
		"retry_in", 2*time.Second, "automation_id", "a", "due_at", time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600)), "run_id", "r2")
	first, _, _ := strings.Cut(l.buf.String(), "\n")
	require.Regexp(t, `^\{"time":"[^"]+Z","level":"INFO","msg":"Box is gone: looked twice","component":"settler","event":"box_is_gone_looked_twice",`+
		`"loop":"settle x","box.size":3,"box.at.place":"here"\}$`, first)
	second := strings.Split(l.buf.String(), "\n")[1]
	require.Regexp(t, `"event":"preparing_step_failed","run_id":"r2","automation_id":"a","workspace_id":"`+id.String()+`","due_at":"2026-01-02T02:04:05Z",`+
		`"duration_ms":1500,"error":"read: context deadline exceeded","error_kind":"timeout","step":"output","retry_in_seconds":2\}$`, second)
}

// marker is a secret that a test plants; it must not be found in any line.
const marker = "m4rk3r-of-a-secret"

// stringer hides its text until it is printed.
type stringer struct{ text string }

// String implements fmt.Stringer.
func (s stringer) String() string { return s.text }

// LogValue implements slog.LogValuer.
func (s stringer) LogValue() slog.Value { return slog.GroupValue(slog.String("detail", s.text)) }

func TestNoLineHoldsASecret(t *testing.T) {
	for name, log := range map[string]func(*slog.Logger){
		"a key of that name":    func(l *slog.Logger) { l.Info("x", "api_key", marker) },
		"the same, of a logger": func(l *slog.Logger) { l.With("session_key", marker).Info("x") },
		"in a group":            func(l *slog.Logger) { l.WithGroup("g").Info("x", slog.Group("h", "token", marker)) },
		"a header in an error":  func(l *slog.Logger) { l.Error("x", "error", errors.New("sent X-Session-API-Key: "+marker)) },
		"a bearer in an error": func(l *slog.Logger) {
			l.Error("x", "error", fmt.Errorf("a: %w", errors.New("Authorization: Bearer "+marker)))
		},
		"the password of a URL":     func(l *slog.Logger) { l.Info("x", "url", "postgres://user:"+marker+"@db/x") },
		"a query of a URL":          func(l *slog.Logger) { l.Info("x", "url", "https://x/y?access_token="+marker+"&z=1") },
		"JSON":                      func(l *slog.Logger) { l.Info("x", "body", `{"session_api_key": "`+marker+`"}`) },
		"a map":                     func(l *slog.Logger) { l.Info("x", "headers", map[string]string{"X-Access-Token": marker}) },
		"the message":               func(l *slog.Logger) { l.Info("bad token=" + marker) },
		"a key by its shape":        func(l *slog.Logger) { l.Info("x", "answer", "no such key sk-oh-"+marker) },
		"a value that is formatted": func(l *slog.Logger) { l.Info("x", "v", stringer{"token: " + marker}) },
		"a setting":                 func(l *slog.Logger) { l.Info("x", "detail", "configured "+marker+" somewhere") },
		"a setting in bytes":        func(l *slog.Logger) { l.Info("x", "detail", json.RawMessage(`["`+marker+`"]`)) },
		"a setting in a message":    func(l *slog.Logger) { l.Warn("about " + marker) },
	} {
		for _, asJSON := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", JSON ", asJSON), func(t *testing.T) {
				var buf bytes.Buffer
				l := newLog(config.Log{JSON: asJSON}, &buf)
				if strings.Contains(name, "setting") {
					hide(l, marker)
				}
				log(l)
				flushLog(l)
				require.NotEmpty(t, buf.String())
				require.NotContains(t, buf.String(), marker)
				require.Contains(t, buf.String(), hiddenSecret)
			})
		}
	}
}

func TestTheSecretsOfTheConfigurationAndOfBackendsAreHidden(t *testing.T) {
	env := []string{
		"HOME=" + t.TempDir(), "AUTOMATION_LOCAL_API_KEY=local-" + marker, "AUTOMATION_DB_URL=postgres://u:db-" + marker + "@h/d",
		"AUTOMATION_SERVICE_KEY=service-" + marker, "ACME_API_TOKEN=acme-" + marker,
	}
	cfg, err := config.Load(env)
	require.NoError(t, err)
	l := newLines(t)
	hideSecrets(l.log, cfg, env)
	for _, who := range []string{"local-", "db-", "service-", "acme-"} {
		l.log.Info("told", "detail", "it was "+who+marker)
	}
	l.log.Info("serving", "settings", cfg)
	require.NotContains(t, l.buf.String(), marker)
	require.Equal(t, 4, strings.Count(l.buf.String(), "it was "+hiddenSecret))
}

func TestRepeatedFailuresCollapseToACountedLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLines(t)
		fail := func(box string, n int) {
			l.log.Error("pass failed", "error", errors.New("away"), "workspace_id", box, "in_a_row", n, "retry_in", time.Duration(n)*time.Second)
		}
		for n := range 40 {
			fail("a", n)
			<-time.After(2900 * time.Millisecond)
		}
		fail("b", 1)
		fail("b", 2)
		for range 3 { // no failures: each is a line
			l.log.Info("request")
		}
		<-time.After(10 * time.Minute)
		synctest.Wait()
		fail("a", 1) // anew

		var got []string
		for _, line := range l.read() {
			if line["msg"] == "pass failed" {
				got = append(got, fmt.Sprint(line["workspace_id"], " ", line["in_a_row"], " x", line["repeated"]))
			}
		}
		require.Equal(t, []string{"a 0 x<nil>", "a 20 x20", "b 1 x<nil>", "a 39 x19", "b 2 x1", "a 1 x<nil>"}, got)
		require.Equal(t, 3, strings.Count(l.buf.String(), `"msg":"request"`))
	})
}

func TestWhatWasCountedIsWrittenAtTheEnd(t *testing.T) {
	l := newLines(t)
	for range 5 {
		l.log.Warn("box did not come up", "error", "no room")
	}
	require.Len(t, l.read(), 1)
	flushLog(l.log)
	all := l.read()
	require.Len(t, all, 2)
	require.InDelta(t, 4, all[1]["repeated"], 0)
}

func TestManyDifferentFailuresAreAllWritten(t *testing.T) {
	l := newLines(t)
	for n := range repeatsMost + 10 {
		l.log.Warn("x", "error", n)
	}
	require.Len(t, l.read(), repeatsMost+10)
}
