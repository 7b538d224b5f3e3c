package config

import (
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Variable describes one variable for people.
type Variable struct {
	Name    string   // the first name
	Also    []string // other names; the first that is set wins
	File    bool     // NAME_FILE may name a file with the value instead
	Default string   // "" for none
	Accepts string   // what values are, in a few words
	Meaning string
}

// Variables lists every variable that Load reads, in the order of Config.
func Variables() []Variable {
	var all []Variable
	for _, f := range fields(new(Config)) {
		all = append(all, Variable{
			Name: f.names[0], Also: f.names[1:], File: f.secret(), Default: f.tag.Get("default"), Accepts: f.accepts(),
			Meaning: meanings[f.names[0]],
		})
	}
	return all
}

// accepts says what values of a field are.
func (f field) accepts() string {
	if words := f.tag.Get("oneof"); words != "" {
		return strings.ReplaceAll(words, "|", ", ")
	}
	switch f.value.Interface().(type) {
	case time.Duration:
		return units[f.tag.Get("unit")].name
	case int, int64:
		return "a number"
	case bool:
		return "true, false"
	case uuid.UUID:
		return "a UUID"
	case []string:
		return "URLs, comma separated"
	case map[string]int:
		return "backend=number, comma separated"
	case map[string]Price:
		return "backend=awake/paused, comma separated"
	case Keys:
		return "32 bytes in base64, comma separated"
	}
	switch f.tag.Get("kind") {
	case "url":
		return "a URL"
	case "addr":
		return "host:port"
	case "path":
		return "a path"
	}
	if f.value.Type() == reflect.TypeFor[Secret]() {
		return "a secret"
	}
	return "a text"
}

// meanings is what each variable is for.
var meanings = map[string]string{ //nolint:gosec // names and words, no credential
	"AUTOMATION_DB_URL":                     "the database; wins over the variables below",
	"AUTOMATION_DB_HOST":                    "PostgreSQL: host, or the folder of its socket",
	"AUTOMATION_DB_PORT":                    "PostgreSQL: port",
	"AUTOMATION_DB_NAME":                    "PostgreSQL: database",
	"AUTOMATION_DB_USER":                    "PostgreSQL: user",
	"AUTOMATION_DB_PASS":                    "PostgreSQL: password",
	"AUTOMATION_DB_SSL_MODE":                "PostgreSQL: encryption; unset: prefer",
	"AUTOMATION_DB_POOL_SIZE":               "PostgreSQL: connections",
	"AUTOMATION_DB_MAX_OVERFLOW":            "PostgreSQL: connections beyond the pool",
	"AUTOMATION_DB_POOL_RECYCLE":            "accepted; connections are closed when idle for 5 minutes",
	"AUTOMATION_DB_POOL_TIMEOUT":            "accepted; a request waits as long as its own deadline",
	"AUTOMATION_RUN_MIGRATIONS_ON_STARTUP":  "PostgreSQL: serve brings the schema up (on SQLite it always does)",
	"AUTOMATION_CREATE_DATABASE_IF_MISSING": "PostgreSQL: make the database first",
	"AUTOMATION_SECRET_KEY":                 "seals secrets in rows: the first seals, all open; unset: a file in the data folder, on PostgreSQL derived from the service or local key",

	"AUTOMATION_LISTEN":            "where the API listens; unset: every interface where a login is configured, else loopback",
	"AUTOMATION_METRICS_LISTEN":    "where /metrics is served without a login; empty: nowhere",
	"AUTOMATION_SERVER_PORT":       "port of the default of AUTOMATION_LISTEN",
	"AUTOMATION_BASE_URL":          "URL at which people and boxes reach the service; its path is the prefix of every route",
	"AUTOMATION_CORS_ORIGINS":      "pages of other sites that may use cookies here (API.md); unset: the OpenHands API base URL",
	"AUTOMATION_HTTP_TIMEOUT":      "of one call to another service",
	"AUTOMATION_HTTP_LONG_TIMEOUT": "accepted; uploads into boxes have a bound of their own",

	"AUTOMATION_LOCAL_API_KEY":        "login of the local user",
	"AUTOMATION_SERVICE_KEY":          "login of the service at OpenHands Cloud; set alone it means backend openhands",
	"AUTOMATION_AUTH_CACHE_TTL":       "how long a checked login is believed",
	"AUTOMATION_AUTH_CACHE_SIZE":      "checked logins that are remembered",
	"AUTOMATION_AUTH_MAX_RETRIES":     "of the check of a login",
	"AUTOMATION_AUTH_INITIAL_BACKOFF": "before the first of them",
	"AUTOMATION_AUTH_MAX_BACKOFF":     "before the later ones at most",

	"AUTOMATION_SCHEDULER_INTERVAL_SECONDS":               "longest time between two looks at schedules",
	"AUTOMATION_FAILURE_DISABLE_THRESHOLD":                "so many permanent failures in a row switch an automation off; 0: never",
	"AUTOMATION_CONSECUTIVE_FAILURE_DISABLE_THRESHOLD":    "so many failures of any kind in a row do; 0: never",
	"AUTOMATION_CONSECUTIVE_FAILURE_DISABLE_WINDOW_HOURS": "within this time",
	"AUTOMATION_DISPATCHER_INTERVAL_SECONDS":              "longest time between two looks at pending runs",
	"AUTOMATION_DISPATCHER_BATCH_SIZE":                    "runs claimed at once",
	"AUTOMATION_DISPATCHER_MAX_IN_FLIGHT":                 "runs being started at the same time by one process",
	"AUTOMATION_DEFAULT_RUN_DURATION":                     "time-out of a run whose automation says none",
	"AUTOMATION_MAX_RUN_DURATION":                         "largest time-out of an automation",
	"AUTOMATION_RUN_TIMEOUT_MARGIN":                       "added to the time-out before a run is given up",
	"AUTOMATION_RUN_TIMEOUT_HARD_GRACE":                   "how much longer a run that still works may go on",
	"AUTOMATION_SANDBOX_POLL_INTERVAL":                    "between two looks at a box that starts",
	"AUTOMATION_SANDBOX_READY_TIMEOUT":                    "how long a box may take to start",
	"AUTOMATION_SANDBOX_PROVISION_MAX_ATTEMPTS":           "boxes tried for one run",
	"AUTOMATION_SANDBOX_PROVISION_RETRY_DELAY":            "between two of them",
	"AUTOMATION_CONVERSATION_IDLE_TTL_SECONDS":            "after how long unused a box is suspended, by the provider where it has a timer; 0: never, or by its own",
	"AUTOMATION_CUSTOMER_AGENT_COMMAND":                   "the server that customers start in a sandbox, as a shell command",
	"AUTOMATION_EXTERNAL_DOWNLOAD_TIMEOUT":                "of the download of a tarball from elsewhere",
	"AUTOMATION_EXTERNAL_MAX_FILESIZE":                    "bytes of such a tarball",
	"AUTOMATION_RATE_LIMIT_MIN_WAIT":                      "first wait after a provider said too many requests",
	"AUTOMATION_RATE_LIMIT_MAX_WAIT":                      "longest wait",
	"AUTOMATION_RATE_LIMIT_MAX_RETRIES":                   "tries after it",
	"AUTOMATION_WATCHDOG_INTERVAL_SECONDS":                "longest time between two looks at stale runs and due boxes",
	"AUTOMATION_RUN_EXIT_GRACE_SECONDS":                   "how long a command that has called back may take to exit; 0: not waited for",
	"AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS":            "from the end of a run to the deletion of its box; 0: at once, nothing is paused",
	"AUTOMATION_SANDBOX_MAX_EXTENSION_SECONDS":            "furthest from now that a due date can be moved by hand",
	"AUTOMATION_WORKSPACE_RETENTION_SECONDS":              "local mode: age at which the folder of a finished run is removed; 0: never",
	"AUTOMATION_RUN_OUTPUT_RETENTION_DAYS":                "how long output is kept after the box is gone",
	"AUTOMATION_EXPORT_RETENTION_DAYS":                    "how long an export is kept after the box is gone",
	"AUTOMATION_SANDBOX_EVENT_RETENTION_DAYS":             "how long the timeline of a box is kept, and rows of customers' sessions and keys after their end",
	"AUTOMATION_SANDBOX_BACKEND":                          "where new runs get their boxes; see Boxes",
	"AUTOMATION_SANDBOX_RECLAIM":                          "what a box frees before it is paused",
	"AUTOMATION_SANDBOX_EXPORT":                           "whether the history is exported before a box is paused; auto: where there is a delay and the provider does not keep it",
	"AUTOMATION_DEPLOYMENT_ID":                            "label of the boxes of this deployment; unset: the one in the database",
	"AUTOMATION_SANDBOX_SLOTS":                            "how many boxes your plan at a provider allows to be awake at a time; for the metrics, nothing is held to it",
	"AUTOMATION_SANDBOX_PRICES":                           "what an hour of a box costs you there, in your currency: awake, and after the slash paused; for the metrics",
	"AUTOMATION_OPENHANDS_API_BASE_URL":                   "OpenHands Cloud",
	"AUTOMATION_AGENT_SERVER_URL":                         "local mode: the agent server that all runs share",
	"AUTOMATION_AGENT_SERVER_API_KEY":                     "local mode: its key",
	"AUTOMATION_SANDBOX_AGENT_SERVER_URL":                 "local mode: that agent server as a run sees it; unset: the same",
	"AUTOMATION_WORKSPACE_BASE":                           "local mode: folder of the work of runs; empty: ~/.openhands/workspaces",
	"AUTOMATION_DATA_DIR":                                 "the service's own folder",
	"FILE_STORE":                                          "where uploads, output and exports are stored: a folder, or a bucket of an S3 service",
	"LOCAL_STORAGE_PATH":                                  "that folder; unset: blobs in the data folder",
	"AWS_S3_BUCKET":                                       "that bucket",
	"AWS_S3_ENDPOINT":                                     "host of the S3 service, with its port where it is not the usual one",
	"AWS_S3_SECURE":                                       "https",
	"AWS_S3_AUTO_CREATE_BUCKET":                           "make the bucket where it is missing",
	"AWS_REGION":                                          "of the bucket; unset: asked for",
	"AWS_ACCESS_KEY_ID":                                   "opens the bucket; unset: the role of the machine does",
	"AWS_SECRET_ACCESS_KEY":                               "with it",
	"AUTOMATION_LOG_LEVEL":                                "wins over LOG_LEVEL",
	"LOG_LEVEL":                                           "what is logged",
	"LOG_JSON":                                            "JSON lines, where standard error is no terminal",
	"LOG_JSON_FOR_CONSOLE":                                "JSON on a terminal too",
	"DEBUG":                                               "the same as LOG_LEVEL=debug",
}
