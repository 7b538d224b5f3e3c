package main

import (
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"automation/config"
)

// hiddenSecret stands for a secret in a line.
const hiddenSecret = "[redacted]"

// leastSecret is the shortest secret that is looked for in texts: a shorter one would blot out words.
const leastSecret = 8

// What looks like a secret, whoever wrote it: values of keys that name one, credentials in headers and URLs, and keys by their
// shape. The value of such a pattern is its last group.
var (
	secretKey    = regexp.MustCompile(`(?i)(^|[_.-])(key|api-?key|token|secret|password|passwd|pass|authorization|cookie|credentials?)$`)
	secretShapes = []*regexp.Regexp{
		regexp.MustCompile(`(?i)\b(bearer\s+|basic\s+)([a-z0-9._~+/=-]{6,})`),
		regexp.MustCompile(`(?i)((?:api[_-]?key|session[_-](?:api[_-])?key|authorization|token|secret|password|passwd)["']?\s*[:=]\s*["']?)([^\s"'&,;}\])]{4,})`),
		regexp.MustCompile(`(://[^/\s:@]*:)([^/\s@]+)@`),
		regexp.MustCompile(`()\b((?:sk|pk|rk)-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|dop_v1_[a-f0-9]{16,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)`),
	}
)

func isSecretKey(key string) bool { return secretKey.MatchString(key) }

// secrets are the values that no line may hold.
type secrets struct {
	mu     sync.RWMutex
	values []string
}

func (s *secrets) add(values ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range values {
		if len(v) >= leastSecret {
			s.values = append(s.values, v)
		}
	}
}

// redact is text without secrets.
func (s *secrets) redact(text string) string {
	s.mu.RLock()
	for _, v := range s.values {
		text = strings.ReplaceAll(text, v, hiddenSecret)
	}
	s.mu.RUnlock()
	for _, shape := range secretShapes {
		text = shape.ReplaceAllStringFunc(text, func(found string) string {
			at := shape.FindStringSubmatchIndex(found)
			return found[:at[4]] + hiddenSecret + found[at[5]:]
		})
	}
	return text
}

// hideSecrets keeps the secrets of a configuration out of the lines of a log, and every value of the environment whose name
// says that it is one: backends read their own.
func hideSecrets(log *slog.Logger, cfg config.Config, environ []string) {
	hide(log, cfg.Auth.LocalAPIKey.Reveal(), cfg.Auth.ServiceKey.Reveal(), cfg.Sandbox.AgentServerAPIKey.Reveal())
	if cfg.IsSet("AUTOMATION_DB_PASS") {
		hide(log, cfg.Database.Pass.Reveal())
	}
	if dsn, err := url.Parse(cfg.Database.DSN.Reveal()); err == nil && cfg.IsSet("AUTOMATION_DB_URL") {
		password, _ := dsn.User.Password()
		hide(log, password)
	}
	for name, value := range config.Environment(environ) {
		if isSecretKey(name) {
			hide(log, strings.Split(value, ",")...)
		}
	}
}

// hide keeps values out of the lines of a log that newLog made.
func hide(log *slog.Logger, values ...string) {
	if h, ok := log.Handler().(*logHandler); ok {
		h.secrets.add(values...)
	}
}
