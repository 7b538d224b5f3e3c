package agentserver

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"automation/agentserver/conversation"
	"automation/agentserver/storage"
)

// Config is all that the server is told from outside. The names of the environment are those of the Python server where
// the meaning is the same; of everything else that stands in the environment nothing is read (S0-030).
type Config struct {
	Host     string // --host: address to listen on, default 127.0.0.1
	Port     int    // --port: 0 lets the system choose
	PortFile string // --port-file: the port listened on is written there, whole or not at all; "" for none

	SessionKeys []string // OH_SESSION_API_KEYS_0…, or one JSON list in OH_SESSION_API_KEYS, or SESSION_API_KEY; never empty ones
	Home        string   // HOME: the box's home directory
	FilesRoot   string   // OH_FILES_ROOT: the file routes serve only what lies beneath it; "" serves every absolute path

	PersistenceDir    string // OH_PERSISTENCE_DIR: what the server itself keeps, default {Home}/.openhands
	BashEventsDir     string // OH_BASH_EVENTS_DIR: commands and their output, default {PersistenceDir}/bash_events
	ConversationsPath string // OH_CONVERSATIONS_PATH: the histories, never touched by a reclaim, default {PersistenceDir}/conversations
	WorkspacePath     string // OH_WORKSPACE_PATH: the shared workspace, default {Home}/project; only dependencies of its checkouts go

	WorktreeRoot string // OH_CONVERSATION_WORKTREE_ROOT: a git worktree for each conversation lies in it; "" for none

	Runtime string           // OH_CONVERSATION_RUNTIME: local or docker
	Storage storage.Settings // OH_CONVERSATION_STORAGE_RETENTION_DAYS and OH_CONVERSATION_STORAGE_DISK_BUDGET (a share, above 0 and at most 1)
}

// Bounds of the server's own passes: after a start or a resume nothing is archived for its age for a day, and then only some
// in one pass (S0-150).
const (
	archiveGrace = 24 * time.Hour
	archiveLimit = 8
)

// runtimesDir is where the docker runtimes lie, "" when conversations have none.
func (c Config) runtimesDir() string {
	if c.Runtime != "docker" {
		return ""
	}
	return c.PersistenceDir
}

// errUsage marks a mistake in the arguments, as against one in the configuration.
var errUsage = errors.New("usage")

// configure reads the arguments and the environment ("NAME=value" each).
func configure(args, environ []string, usage io.Writer) (Config, error) {
	env := make(map[string]string, len(environ))
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			env[name] = value
		}
	}
	var c Config
	if err := c.parseFlags(args, usage); err != nil {
		return Config{}, err
	}
	if err := c.readPlaces(env); err != nil {
		return Config{}, err
	}
	if err := c.readStorage(env); err != nil {
		return Config{}, err
	}
	var err error
	if c.SessionKeys, err = sessionKeys(env); err != nil {
		return Config{}, err
	}
	if len(c.SessionKeys) == 0 && !isLoopback(c.Host) {
		return Config{}, fmt.Errorf("--host %s is reachable from outside and no session key is set: set OH_SESSION_API_KEYS_0", c.Host)
	}
	return c, nil
}

func (c *Config) parseFlags(args []string, usage io.Writer) error {
	flags := flag.NewFlagSet("agent-server", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&c.Host, "host", "127.0.0.1", "address to listen on")
	flags.IntVar(&c.Port, "port", 8000, "port to listen on, 0 for any")
	flags.StringVar(&c.PortFile, "port-file", "", "file to write the port to")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%w: unexpected argument %q", errUsage, flags.Arg(0))
	}
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("%w: --port %d is no port", errUsage, c.Port)
	}
	return nil
}

func (c *Config) readPlaces(env map[string]string) error {
	home := env["HOME"]
	if home == "" {
		account, err := user.Current()
		if err != nil {
			return fmt.Errorf("HOME is not set and the account has no home: %w", err)
		}
		home = account.HomeDir
	}
	c.Home = home
	for _, place := range []struct {
		name  string
		field *string
		value string
	}{
		{"HOME", &c.Home, ""},
		{"OH_FILES_ROOT", &c.FilesRoot, ""},
		{"OH_CONVERSATION_WORKTREE_ROOT", &c.WorktreeRoot, ""},
		{"OH_CONVERSATIONS_PATH", &c.ConversationsPath, ""},
		{"OH_WORKSPACE_PATH", &c.WorkspacePath, filepath.Join(home, "project")},
		{"OH_PERSISTENCE_DIR", &c.PersistenceDir, filepath.Join(home, ".openhands")},
		{"OH_BASH_EVENTS_DIR", &c.BashEventsDir, ""},
	} {
		value := env[place.name]
		if value == "" {
			value = place.value
		}
		if value == "" {
			continue
		}
		absolute, err := filepath.Abs(value)
		if err != nil {
			return fmt.Errorf("%s: %w", place.name, err)
		}
		*place.field = absolute
	}
	if c.BashEventsDir == "" {
		c.BashEventsDir = filepath.Join(c.PersistenceDir, "bash_events")
	}
	if c.ConversationsPath == "" {
		c.ConversationsPath = filepath.Join(c.PersistenceDir, "conversations")
	}
	return nil
}

// readStorage reads the layout of the conversations and what the server's own passes follow.
func (c *Config) readStorage(env map[string]string) error {
	const runtime, days, budget = "OH_CONVERSATION_RUNTIME", "OH_CONVERSATION_STORAGE_RETENTION_DAYS", "OH_CONVERSATION_STORAGE_DISK_BUDGET"
	c.Storage = storage.Settings{Grace: archiveGrace, ArchiveLimit: archiveLimit}
	switch c.Runtime = env[runtime]; c.Runtime {
	case "":
		c.Runtime = "local"
	case "local", "docker":
	default:
		return fmt.Errorf("%s is %q, not local or docker", runtime, c.Runtime)
	}
	if text := env[days]; text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > conversation.MaxDays {
			return fmt.Errorf("%s is %q, not a number of days from 1 to %d", days, text, conversation.MaxDays)
		}
		c.Storage.RetentionDays = n
	}
	if text := env[budget]; text != "" {
		share, err := strconv.ParseFloat(text, 64)
		if err != nil || !(share > 0 && share <= 1) {
			return fmt.Errorf("%s is %q, not a share above 0 and at most 1", budget, text)
		}
		c.Storage.DiskBudget = share
	}
	return nil
}

// sessionKeys returns the keys that open the server. Empty ones are dropped: they must never authenticate.
func sessionKeys(env map[string]string) ([]string, error) {
	const name = "OH_SESSION_API_KEYS"
	if env[name+"_IS_NONE"] == "1" {
		return nil, nil
	}
	var all []string
	if text := env[name]; text != "" {
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return nil, errors.New(name + " is no JSON list of texts")
		}
	}
	var indexes []int
	for key := range env {
		if suffix, ok := strings.CutPrefix(key, name+"_"); ok {
			if index, err := strconv.Atoi(suffix); err == nil {
				indexes = append(indexes, index)
			}
		}
	}
	sort.Ints(indexes)
	for _, index := range indexes {
		all = append(all, env[name+"_"+strconv.Itoa(index)])
	}
	if len(all) == 0 {
		all = append(all, env["SESSION_API_KEY"])
	}
	kept := all[:0]
	for _, key := range all {
		if key != "" {
			kept = append(kept, key)
		}
	}
	return kept, nil
}

// isLoopback reports whether only this machine reaches a listener on host.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address := net.ParseIP(strings.Trim(host, "[]"))
	return address != nil && address.IsLoopback()
}

// commandEnvironment is the environment of a command: the server's own without the secrets of the server.
func commandEnvironment(environ []string) []string {
	kept := make([]string, 0, len(environ))
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		secret := strings.HasPrefix(name, "OH_SESSION_API_KEYS") || name == "SESSION_API_KEY" ||
			name == "OH_SECRET_KEY" || name == "OH_INIT_API_KEY"
		if !secret {
			kept = append(kept, pair)
		}
	}
	return kept
}
