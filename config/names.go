package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// elsewhere are variables that mean something to the Python service or to the client commands, and are accepted here
// without effect.
var elsewhere = strings.Fields(`
	AUTOMATION_URL AUTOMATION_TOKEN AUTOMATION_TOKEN_FILE
	AUTOMATION_HOST AUTOMATION_SCHEDULER_BATCH_SIZE AUTOMATION_API_DEFAULT_PAGE_SIZE AUTOMATION_API_MAX_PAGE_SIZE
	AUTOMATION_GCP_DB_INSTANCE AUTOMATION_GCP_PROJECT AUTOMATION_GCP_REGION
	AUTOMATION_INTEGRATION_EVENT_RETENTION_DAYS AUTOMATION_WEBHOOK_SECRET
	AUTOMATION_POSTHOG_API_KEY AUTOMATION_POSTHOG_HOST AUTOMATION_STREAMS_ENABLED AUTOMATION_SLACK_APPS
	AUTOMATION_KV_SECRET AUTOMATION_KV_LOCK_TIMEOUT_MS AUTOMATION_KV_MAX_VALUE_SIZE
	AUTOMATION_GIT_SYNC_ENABLED AUTOMATION_GIT_SYNC_REPO_URL AUTOMATION_GIT_SYNC_BRANCH AUTOMATION_GIT_SYNC_PATH
	AUTOMATION_GIT_SYNC_TOKEN AUTOMATION_GIT_SYNC_ENCRYPTION_KEY AUTOMATION_GIT_SYNC_AUTHOR_NAME
	AUTOMATION_GIT_SYNC_AUTHOR_EMAIL AUTOMATION_GIT_SYNC_LOCAL_WORKDIR AUTOMATION_GIT_SYNC_GIT_TIMEOUT_SECONDS
	AUTOMATION_GIT_SYNC_SECRET AUTOMATION_GIT_SYNC_AUTH_FAILURE_BACKOFF_THRESHOLD
	AUTOMATION_GIT_SYNC_FAILURE_BACKOFF_CAP_SECONDS`)

// injected matches what Kubernetes sets in every container for each service of the namespace. A service called
// "automation" or "automation-server" would else collide with our names.
var injected = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$`)

// injectedPort is the value of NAME_PORT that Kubernetes sets.
var injectedPort = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// Environment turns "NAME=value" lines into a map by upper-case name, without what Kubernetes injects. A name spelt in
// upper case wins over other spellings of it.
func Environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	exact := make(map[string]bool)
	for _, line := range environ {
		spelt, value, ok := strings.Cut(line, "=")
		name := strings.ToUpper(spelt)
		if !ok || exact[name] || injected.MatchString(name) ||
			strings.HasSuffix(name, "_PORT") && injectedPort.MatchString(value) {
			continue
		}
		env[name] = value
		exact[name] = spelt == name
	}
	return env
}

func homeOf(environ []string) string {
	for _, line := range environ {
		if home, ok := strings.CutPrefix(line, "HOME="); ok {
			return home
		}
	}
	return ""
}

// Names lists every variable that Load reads, NAME_FILE of secrets included.
func Names() []string {
	var names []string
	for _, f := range fields(new(Config)) {
		for _, name := range f.names {
			names = append(names, name)
			if f.secret() {
				names = append(names, name+"_FILE")
			}
		}
	}
	return names
}

// Unknown returns a warning for every AUTOMATION_ variable that neither this package nor more (the names of the backends)
// knows, with the name that may have been meant.
func Unknown(environ []string, more ...string) []string {
	known := slices.Concat(Names(), more)
	var warnings []string
	for name := range Environment(environ) {
		if !strings.HasPrefix(name, "AUTOMATION_") || slices.Contains(known, name) || slices.Contains(elsewhere, name) {
			continue
		}
		warning := name + " is unknown"
		if near := nearest(name, known); near != "" {
			warning += fmt.Sprintf("; did you mean %s?", near)
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return warnings
}

// nearest returns the known name within three edits of name, or "".
func nearest(name string, known []string) string {
	best, least := "", 4
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance counts the letters to insert, drop or change between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
