// Package config reads the service's settings from environment variables: one struct, every problem reported at once with
// the variable's name, its value and what is accepted. It imports nothing of ours, and nothing else of the service reads the
// environment, but for the settings of a provider, which belong to its backend.
//
// Each field names its variable, default and limits in its tags. Tags: env (the first name that is set wins), default, unit
// (s, ms, h, d: a number in the environment, a time.Duration here), fraction (a decimal number is accepted), min ("any": no
// lower limit; else 0 where not given), max, oneof (words, in any case), kind (url, path, addr), empty ("keep": a text that
// is set but empty is not the default; "zero": an empty number is 0).
package config

import (
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
)

// Config is every setting of the service. It is passed by value and never changes.
type Config struct {
	Database  Database
	HTTP      HTTP
	Auth      Auth
	Scheduler Scheduler
	Dispatch  Dispatch
	Watchdog  Watchdog
	Cleanup   Cleanup
	Sandbox   Sandbox
	Storage   Storage
	Log       Log

	settings []Setting
}

// Database says which database is used and how. DSN is the answer; the fields above it are what it is made from.
type Database struct {
	URL              Secret        `env:"AUTOMATION_DB_URL" kind:"url"`
	Host             string        `env:"AUTOMATION_DB_HOST" default:"localhost"`
	Port             int           `env:"AUTOMATION_DB_PORT" default:"5432" min:"1" max:"65535"`
	Name             string        `env:"AUTOMATION_DB_NAME" default:"automations"`
	User             string        `env:"AUTOMATION_DB_USER" default:"postgres"`
	Pass             Secret        `env:"AUTOMATION_DB_PASS" default:"postgres"`
	SSLMode          string        `env:"AUTOMATION_DB_SSL_MODE,DB_SSL_MODE,PGSSLMODE" oneof:"disable|allow|prefer|require|verify-ca|verify-full"`
	PoolSize         int           `env:"AUTOMATION_DB_POOL_SIZE" default:"10" min:"1"`
	MaxOverflow      int           `env:"AUTOMATION_DB_MAX_OVERFLOW" default:"5"`
	PoolRecycle      time.Duration `env:"AUTOMATION_DB_POOL_RECYCLE" default:"1800" unit:"s"`
	PoolTimeout      time.Duration `env:"AUTOMATION_DB_POOL_TIMEOUT" default:"30" unit:"s"`
	MigrateOnStartup bool          `env:"AUTOMATION_RUN_MIGRATIONS_ON_STARTUP" default:"false"`
	CreateIfMissing  bool          `env:"AUTOMATION_CREATE_DATABASE_IF_MISSING" default:"false"`
	// SecretKeys seal secrets at rest: the first seals, all open. See Config.SealingKeys.
	SecretKeys Keys `env:"AUTOMATION_SECRET_KEY"`

	// DSN is "sqlite:<path>" or a "postgres://" URL.
	DSN Secret
}

// HTTP is where the service listens, how it is reached, and how long its own calls may take.
type HTTP struct {
	// Listen is never empty after Load: host and port.
	Listen string `env:"AUTOMATION_LISTEN" kind:"addr"`
	// MetricsListen serves /metrics without a login; empty: nowhere.
	MetricsListen string `env:"AUTOMATION_METRICS_LISTEN" default:"127.0.0.1:9464" kind:"addr" empty:"keep"`
	ServerPort    int    `env:"AUTOMATION_SERVER_PORT" default:"8000" min:"1" max:"65535"`
	// BaseURL is the public URL without /api/automation and without a slash at its end; never empty after Load.
	BaseURL     string        `env:"AUTOMATION_BASE_URL" kind:"url"`
	CORSOrigins []string      `env:"AUTOMATION_CORS_ORIGINS"`
	Timeout     time.Duration `env:"AUTOMATION_HTTP_TIMEOUT" default:"10" unit:"s" fraction:"true"`
	LongTimeout time.Duration `env:"AUTOMATION_HTTP_LONG_TIMEOUT" default:"60" unit:"s" fraction:"true"`

	// BasePath is the prefix of every route of the API: the path of BaseURL and /api/automation.
	BasePath string
}

// Auth is who may call, and how the Cloud check of a caller behaves.
type Auth struct {
	LocalAPIKey    Secret        `env:"AUTOMATION_LOCAL_API_KEY"`
	ServiceKey     Secret        `env:"AUTOMATION_SERVICE_KEY"`
	CacheTTL       time.Duration `env:"AUTOMATION_AUTH_CACHE_TTL" default:"20" unit:"s" fraction:"true"`
	CacheSize      int           `env:"AUTOMATION_AUTH_CACHE_SIZE" default:"1024"`
	MaxRetries     int           `env:"AUTOMATION_AUTH_MAX_RETRIES" default:"3"`
	InitialBackoff time.Duration `env:"AUTOMATION_AUTH_INITIAL_BACKOFF" default:"1" unit:"s" fraction:"true"`
	MaxBackoff     time.Duration `env:"AUTOMATION_AUTH_MAX_BACKOFF" default:"10" unit:"s" fraction:"true"`
}

// Scheduler is when schedules are looked at, and when an automation that only fails is switched off.
type Scheduler struct {
	Interval time.Duration `env:"AUTOMATION_SCHEDULER_INTERVAL_SECONDS" default:"60" unit:"s" min:"1"`
	// FailureThreshold: so many permanent failures in a row disable the automation; 0 or less: never.
	FailureThreshold int `env:"AUTOMATION_FAILURE_DISABLE_THRESHOLD" default:"3" min:"any"`
	// ConsecutiveFailureThreshold: so many failures of any kind in a row within ConsecutiveFailureWindow do; 0: never.
	ConsecutiveFailureThreshold int           `env:"AUTOMATION_CONSECUTIVE_FAILURE_DISABLE_THRESHOLD" default:"0"`
	ConsecutiveFailureWindow    time.Duration `env:"AUTOMATION_CONSECUTIVE_FAILURE_DISABLE_WINDOW_HOURS" default:"24" unit:"h" fraction:"true"`
}

// Dispatch is how pending runs are started, and how long a run may take.
type Dispatch struct {
	Interval      time.Duration `env:"AUTOMATION_DISPATCHER_INTERVAL_SECONDS" default:"10" unit:"s" min:"1"`
	BatchSize     int           `env:"AUTOMATION_DISPATCHER_BATCH_SIZE" default:"10" min:"1"`
	MaxInFlight   int           `env:"AUTOMATION_DISPATCHER_MAX_IN_FLIGHT" default:"32" min:"1"`
	DefaultRun    time.Duration `env:"AUTOMATION_DEFAULT_RUN_DURATION" default:"600" unit:"s" min:"1"`
	MaxRun        time.Duration `env:"AUTOMATION_MAX_RUN_DURATION" default:"1800" unit:"s" min:"1"`
	TimeoutMargin time.Duration `env:"AUTOMATION_RUN_TIMEOUT_MARGIN" default:"120" unit:"s"`
	HardGrace     time.Duration `env:"AUTOMATION_RUN_TIMEOUT_HARD_GRACE" default:"600" unit:"s"`

	PollInterval         time.Duration `env:"AUTOMATION_SANDBOX_POLL_INTERVAL" default:"5" unit:"s" min:"1"`
	ReadyTimeout         time.Duration `env:"AUTOMATION_SANDBOX_READY_TIMEOUT" default:"300" unit:"s" min:"1"`
	ProvisionMaxAttempts int           `env:"AUTOMATION_SANDBOX_PROVISION_MAX_ATTEMPTS" default:"3" min:"1"`
	ProvisionRetryDelay  time.Duration `env:"AUTOMATION_SANDBOX_PROVISION_RETRY_DELAY" default:"30" unit:"s"`

	// IdleTTL is after how long unused a box is suspended (S3-016): set as the idle timer of new boxes where the provider has one
	// (0 or empty: the provider's own, S0-018), and kept by the idle duty elsewhere (0 or empty: never).
	IdleTTL time.Duration `env:"AUTOMATION_CONVERSATION_IDLE_TTL_SECONDS" default:"1200" unit:"s" empty:"zero"`

	// AgentCommand is the server that customers start in a box.
	AgentCommand string `env:"AUTOMATION_CUSTOMER_AGENT_COMMAND" default:"python -m openhands.agent_server"`

	DownloadTimeout  time.Duration `env:"AUTOMATION_EXTERNAL_DOWNLOAD_TIMEOUT" default:"120" unit:"s" min:"1"`
	DownloadMaxBytes int64         `env:"AUTOMATION_EXTERNAL_MAX_FILESIZE" default:"104857600" min:"1"`

	RateLimitMinWait    time.Duration `env:"AUTOMATION_RATE_LIMIT_MIN_WAIT" default:"10" unit:"s"`
	RateLimitMaxWait    time.Duration `env:"AUTOMATION_RATE_LIMIT_MAX_WAIT" default:"60" unit:"s"`
	RateLimitMaxRetries int           `env:"AUTOMATION_RATE_LIMIT_MAX_RETRIES" default:"5"`
}

// Watchdog is how often the duties that look after runs and boxes pass.
type Watchdog struct {
	Interval time.Duration `env:"AUTOMATION_WATCHDOG_INTERVAL_SECONDS" default:"60" unit:"s" min:"1"`
	// ExitGrace is how long the command that called back may take to exit by itself; 0: it is not waited for.
	ExitGrace time.Duration `env:"AUTOMATION_RUN_EXIT_GRACE_SECONDS" default:"10" unit:"s"`
}

// Cleanup is how long things are kept.
type Cleanup struct {
	// Delay from a run's completion until its box is deleted; 0: at once, and nothing is stamped or paused (S1-001, S1-005).
	Delay time.Duration `env:"AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS" default:"0" unit:"s"`
	// MaxExtension is the furthest from now that a due date may be moved by hand.
	MaxExtension time.Duration `env:"AUTOMATION_SANDBOX_MAX_EXTENSION_SECONDS" default:"2592000" unit:"s" min:"1"`
	// WorkspaceRetention is for the work directories of local mode; 0: never removed.
	WorkspaceRetention time.Duration `env:"AUTOMATION_WORKSPACE_RETENTION_SECONDS" default:"604800" unit:"s"`
	// OutputRetention and ExportRetention count from the day the box is gone.
	OutputRetention time.Duration `env:"AUTOMATION_RUN_OUTPUT_RETENTION_DAYS" default:"30" unit:"d"`
	ExportRetention time.Duration `env:"AUTOMATION_EXPORT_RETENTION_DAYS" default:"30" unit:"d"`
	EventRetention  time.Duration `env:"AUTOMATION_SANDBOX_EVENT_RETENTION_DAYS" default:"365" unit:"d"`
}

// Sandbox is where new runs get their boxes, and what is done to a box before it is suspended or deleted.
type Sandbox struct {
	// Backend is what AUTOMATION_SANDBOX_BACKEND says; empty: Config.ChooseBackend decides.
	Backend string `env:"AUTOMATION_SANDBOX_BACKEND" oneof:"openhands|runtime-api|docker|process|digitalocean|daytona|e2b|modal|cloudflare"`
	Reclaim string `env:"AUTOMATION_SANDBOX_RECLAIM" default:"policy" oneof:"policy|caches|dependencies|off"`
	Export  string `env:"AUTOMATION_SANDBOX_EXPORT" default:"auto" oneof:"auto|on|off"`
	// DeploymentID labels the boxes of this deployment; empty: the UUID in the database.
	DeploymentID uuid.UUID `env:"AUTOMATION_DEPLOYMENT_ID"`
	// Slots is how many boxes may be awake at a time at a backend, Prices what an hour of one costs there: what the operator knows
	// of a provider's plan. They are shown beside what is in use, and decide nothing.
	Slots  map[string]int   `env:"AUTOMATION_SANDBOX_SLOTS"`
	Prices map[string]Price `env:"AUTOMATION_SANDBOX_PRICES"`
	// APIBaseURL is that of OpenHands Cloud.
	APIBaseURL string `env:"AUTOMATION_OPENHANDS_API_BASE_URL" default:"https://app.all-hands.dev" kind:"url"`

	// AgentServerURL set means local mode: runs share that agent server, and there are no boxes.
	AgentServerURL    string `env:"AUTOMATION_AGENT_SERVER_URL" kind:"url"`
	AgentServerAPIKey Secret `env:"AUTOMATION_AGENT_SERVER_API_KEY"`
	// InnerAgentServerURL is AgentServerURL as a run's command sees it; empty: the same.
	InnerAgentServerURL string `env:"AUTOMATION_SANDBOX_AGENT_SERVER_URL" kind:"url"`
	// WorkspaceBase holds the work directories of local mode; set but empty: ~/.openhands/workspaces.
	WorkspaceBase string `env:"AUTOMATION_WORKSPACE_BASE" default:"/workspace" kind:"path" empty:"keep"`
}

// Storage is where the service keeps its own files.
type Storage struct {
	// DataDir holds the SQLite file, keys, outputs, exports and process boxes.
	DataDir string `env:"AUTOMATION_DATA_DIR" default:"~/.local/share/automation" kind:"path"`
	// FileStore is where uploads, run outputs and exports are kept: in BlobDir, or in a bucket of an S3 service.
	FileStore string `env:"FILE_STORE" default:"local" oneof:"local|s3"`
	// BlobDir is <DataDir>/blobs where the variable is not set.
	BlobDir string `env:"LOCAL_STORAGE_PATH" kind:"path"`
	// Bucket must be set for s3; Endpoint is a host, with its port where it is not the usual one.
	Bucket       string `env:"AWS_S3_BUCKET"`
	Endpoint     string `env:"AWS_S3_ENDPOINT" default:"s3.amazonaws.com"`
	Secure       bool   `env:"AWS_S3_SECURE" default:"true"`
	CreateBucket bool   `env:"AWS_S3_AUTO_CREATE_BUCKET" default:"false"`
	Region       string `env:"AWS_REGION,AWS_DEFAULT_REGION"`
	// AccessKey and SecretKey open the bucket; neither set: the role of the machine does.
	AccessKey Secret `env:"AWS_ACCESS_KEY_ID"`
	SecretKey Secret `env:"AWS_SECRET_ACCESS_KEY"`
}

// Log is what is written to standard error, and how.
type Log struct {
	// Level is AUTOMATION_LOG_LEVEL, else debug with DEBUG, else LOG_LEVEL.
	Level          slog.Level
	OwnLevel       string `env:"AUTOMATION_LOG_LEVEL" oneof:"debug|info|warning|warn|error|critical"`
	RootLevel      string `env:"LOG_LEVEL" default:"info" oneof:"debug|info|warning|warn|error|critical"`
	JSON           bool   `env:"LOG_JSON" default:"true"`
	JSONForConsole bool   `env:"LOG_JSON_FOR_CONSOLE" default:"false"`
	Debug          bool   `env:"DEBUG" default:"false"`
}

// Load reads the settings from environ ("NAME=value", as os.Environ gives it). The error is an *Error with every problem.
// The files that NAME_FILE variables of secrets name are read; nothing else is touched.
func Load(environ []string) (Config, error) {
	var c Config
	r := &reader{env: Environment(environ), home: homeOf(environ)}
	r.read(&c)
	c.settings = r.settings
	c.derive(r)
	if len(r.problems) > 0 {
		return c, &Error{Problems: r.problems}
	}
	return c, nil
}

// Default is what Load gives in an environment that sets only the data folder.
func Default(dataDir string) Config {
	c, err := Load([]string{"AUTOMATION_DATA_DIR=" + dataDir, "HOME=" + dataDir})
	if err != nil {
		panic(err) // the defaults are constants of this package: its tests hold that they are valid
	}
	return c
}

// derive fills what follows from the variables, and checks what concerns more than one of them.
func (c *Config) derive(r *reader) {
	if c.Storage.BlobDir == "" {
		c.Storage.BlobDir = c.Storage.DataDir + string(os.PathSeparator) + "blobs"
	}
	if c.Sandbox.WorkspaceBase == "" {
		c.Sandbox.WorkspaceBase = r.expand("~/.openhands/workspaces")
	}
	c.Log.Level = c.Log.level()
	c.deriveHTTP(r)
	c.deriveDatabase(r)
	c.checkBackend(r)
	c.checkStorage(r)
}

func (l Log) level() slog.Level {
	word := l.RootLevel
	switch {
	case l.OwnLevel != "":
		word = l.OwnLevel
	case l.Debug:
		word = "debug"
	}
	switch word {
	case "debug":
		return slog.LevelDebug
	case "warning", "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	case "critical":
		return slog.LevelError + 4
	}
	return slog.LevelInfo
}

// IsSet reports whether the environment gives the variable a value that is not empty.
func (c Config) IsSet(name string) bool {
	for _, s := range c.settings {
		if s.Name == name {
			return s.Set
		}
	}
	return false
}
