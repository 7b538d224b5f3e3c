package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// The backends that the rules below name.
const (
	openhands = "openhands"
	process   = "process"
)

// deriveHTTP applies the rules of where the service listens and how it is reached.
func (c *Config) deriveHTTP(r *reader) {
	h := &c.HTTP
	port := strconv.Itoa(h.ServerPort)
	if h.BaseURL == "" {
		h.BaseURL = "http://localhost:" + port
	}
	if u, err := url.Parse(h.BaseURL); err == nil {
		h.BasePath = strings.TrimRight(u.Path, "/") + "/api/automation"
	}
	switch {
	case h.Listen == "" && c.hasCredential():
		h.Listen = net.JoinHostPort("0.0.0.0", port)
	case h.Listen == "":
		h.Listen = net.JoinHostPort("127.0.0.1", port)
	case !c.hasCredential() && !isLoopback(h.Listen):
		r.problem("AUTOMATION_LISTEN", h.Listen, "want a loopback address, or AUTOMATION_LOCAL_API_KEY set")
	}
}

// hasCredential reports whether callers can log in by something configured (S0-156).
func (c *Config) hasCredential() bool { return c.Auth.LocalAPIKey != "" || c.cloudLogin() }

// cloudLogin reports whether callers are checked by OpenHands Cloud: backend openhands, which the service key alone implies.
func (c *Config) cloudLogin() bool {
	implied := c.Sandbox.Backend == "" && c.Sandbox.AgentServerURL == "" && c.Auth.ServiceKey != ""
	return c.Sandbox.Backend == openhands || implied
}

// NeedsLocalKey reports whether nobody could log in: serve then makes a key in the data folder and listens on loopback.
func (c Config) NeedsLocalKey() bool { return !c.hasCredential() }

// Loopback reports whether the service can be reached from its own machine only.
func (c Config) Loopback() bool { return isLoopback(c.HTTP.Listen) }

func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// checkBackend refuses settings that contradict each other.
func (c *Config) checkBackend(r *reader) {
	if c.Sandbox.AgentServerURL != "" && c.Sandbox.Backend != "" {
		r.problem("AUTOMATION_SANDBOX_BACKEND", c.Sandbox.Backend,
			"want no backend where AUTOMATION_AGENT_SERVER_URL sets local mode")
	}
	if c.Sandbox.Backend == openhands && c.Auth.ServiceKey == "" {
		r.problems = append(r.problems, Problem{Name: "AUTOMATION_SERVICE_KEY", Want: "backend openhands needs it"})
	}
}

// Surroundings is what the choice of a backend depends on beside the settings themselves.
type Surroundings struct {
	ProviderVariables []string // the names of set variables that belong to a provider
	OtherBackend      string   // a backend other than process that has boxes in the database; "": none
}

// Choice is where new runs get their boxes.
type Choice struct {
	Backend string // "" in local mode
	Local   bool   // local mode: runs share one agent server, and there are no boxes
}

// ChooseBackend applies the rule of which backend new runs use (design: "Which backend"). The embedded default, process, is
// taken only when nothing points elsewhere. The error is an *Error.
func (c Config) ChooseBackend(s Surroundings) (Choice, error) {
	switch {
	case c.Sandbox.Backend != "":
		return Choice{Backend: c.Sandbox.Backend}, nil
	case c.Sandbox.AgentServerURL != "":
		return Choice{Local: true}, nil
	case c.Auth.ServiceKey != "":
		return Choice{Backend: openhands}, nil
	}
	if hint := c.pointsElsewhere(s); hint != "" {
		return Choice{}, &Error{Problems: []Problem{{
			Name: "AUTOMATION_SANDBOX_BACKEND",
			Want: fmt.Sprintf("set AUTOMATION_SANDBOX_BACKEND: process is only the default where nothing points elsewhere, but %s", hint),
		}}}
	}
	return Choice{Backend: process}, nil
}

// pointsElsewhere returns why process is not plainly meant, or "".
func (c Config) pointsElsewhere(s Surroundings) string {
	switch {
	case c.Database.Postgres():
		return "the database is PostgreSQL"
	case c.IsSet("AUTOMATION_OPENHANDS_API_BASE_URL"):
		return "AUTOMATION_OPENHANDS_API_BASE_URL is set"
	case len(s.ProviderVariables) > 0:
		return strings.Join(s.ProviderVariables, ", ") + " is set"
	case !c.Loopback():
		return "the service listens on " + c.HTTP.Listen
	case s.OtherBackend != "":
		return "the database holds boxes of backend " + s.OtherBackend
	}
	return ""
}
