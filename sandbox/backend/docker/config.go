package docker

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"automation/sandbox"
)

// Config is the backend's part of the environment.
type Config struct {
	// Host is the engine: a socket of this machine, or a loopback address. Boxes share files and ports with it.
	Host string `env:"AUTOMATION_DOCKER_HOST" envDefault:"unix:///var/run/docker.sock"`
	// Image has an agent server as its entry point that takes --host and --port: OpenHands' own, or one made by make image.
	Image string `env:"AUTOMATION_DOCKER_IMAGE"`
	// Pull says what to do about an image that the engine does not have: missing pulls it, never is an error at once.
	Pull string `env:"AUTOMATION_DOCKER_PULL" envDefault:"missing"`
	// Suspend says what a suspend is: stop keeps the disk, pause the memory too (S0-095, S0-124).
	Suspend string `env:"AUTOMATION_DOCKER_SUSPEND" envDefault:"stop"`
	// StopGraceSeconds is how long a box may take to end before it is killed.
	StopGraceSeconds int `env:"AUTOMATION_DOCKER_STOP_GRACE_SECONDS" envDefault:"10"`
	// OnStart says what becomes of running boxes of conversations when the service starts: adopt goes on with them and their
	// agents, remove drops their containers and keeps their files (S3-020).
	OnStart string `env:"AUTOMATION_DOCKER_ON_START" envDefault:"adopt"`
	// OnStop says what becomes of them when the service stops: stop suspends them (S3-014), keep leaves them running.
	OnStop string `env:"AUTOMATION_DOCKER_ON_STOP" envDefault:"stop"`
	// User is "uid:gid" of everything in a box. Empty: the service's own, or an unprivileged one where that is root; in a
	// caller's own checkout its owner.
	User string `env:"AUTOMATION_DOCKER_USER"`
	// MemoryBytes, CPUs and Processes bound one box; 0: no limit.
	MemoryBytes int64   `env:"AUTOMATION_DOCKER_MEMORY_BYTES" envDefault:"4294967296"`
	CPUs        float64 `env:"AUTOMATION_DOCKER_CPUS" envDefault:"2"`
	Processes   int64   `env:"AUTOMATION_DOCKER_MAX_PROCESSES" envDefault:"512"`
	// DataDir holds the files of boxes, by the same path for service and engine. Empty: "docker" in the data folder.
	DataDir string `env:"AUTOMATION_DOCKER_DATA_DIR"`
	// Workspaces are the directories below which a caller may name a checkout of their own as a workspace, separated by colons.
	// Empty: none.
	Workspaces []string `env:"AUTOMATION_DOCKER_WORKSPACES" envSeparator:":"`
	// Env is added to the environment of boxes: NAME=value;NAME=value.
	Env map[string]string `env:"AUTOMATION_DOCKER_ENV" envSeparator:";" envKeyValSeparator:"="`
}

// The words of Config.
const (
	PullMissing   = "missing"
	PullNever     = "never"
	SuspendStop   = "stop"
	SuspendPause  = "pause"
	OnStartAdopt  = "adopt"
	OnStartRemove = "remove"
	OnStopStop    = "stop"
	OnStopKeep    = "keep"
)

// graceMost bounds the stop grace: a stop has to fit into one call of the settler.
const graceMost = 20

// Options are what the service gives the backend.
type Options struct {
	DataDir string           // absolute; boxes are in DataDir/docker where Config.DataDir is empty
	Log     *slog.Logger     // nil: discarded
	Now     func() time.Time // the clock of rows; nil: the host's
}

// Check tells values that can be read but not used. Its error names the variable.
func (c Config) Check() error {
	for _, word := range []struct{ name, value, one, other string }{
		{"AUTOMATION_DOCKER_PULL", c.Pull, PullMissing, PullNever},
		{"AUTOMATION_DOCKER_SUSPEND", c.Suspend, SuspendStop, SuspendPause},
		{"AUTOMATION_DOCKER_ON_START", c.OnStart, OnStartAdopt, OnStartRemove},
		{"AUTOMATION_DOCKER_ON_STOP", c.OnStop, OnStopStop, OnStopKeep},
	} {
		if word.value != word.one && word.value != word.other {
			return fmt.Errorf("%s=%q: %s or %s", word.name, word.value, word.one, word.other)
		}
	}
	switch {
	case c.Image == "":
		return errors.New("AUTOMATION_DOCKER_IMAGE is not set: an image whose entry point is an agent server")
	case c.StopGraceSeconds < 0 || c.StopGraceSeconds > graceMost:
		return fmt.Errorf("AUTOMATION_DOCKER_STOP_GRACE_SECONDS=%d: from 0 to %d", c.StopGraceSeconds, graceMost)
	case c.MemoryBytes < 0:
		return fmt.Errorf("AUTOMATION_DOCKER_MEMORY_BYTES=%d: must not be negative", c.MemoryBytes)
	case !(c.CPUs >= 0): // nor not-a-number
		return fmt.Errorf("AUTOMATION_DOCKER_CPUS=%v: must not be negative", c.CPUs)
	case c.Processes < 0:
		return fmt.Errorf("AUTOMATION_DOCKER_MAX_PROCESSES=%d: must not be negative", c.Processes)
	}
	return errors.Join(c.checkHost(), c.checkUser(), c.checkPaths(), c.checkEnv())
}

// checkHost refuses an engine elsewhere: its bind mounts and loopback ports are not this machine's.
func (c Config) checkHost() error {
	u, err := url.Parse(c.Host)
	switch {
	case err != nil:
		return errors.New("AUTOMATION_DOCKER_HOST: not a URL")
	case u.Scheme == "unix":
		return nil
	case u.Scheme == "tcp" || u.Scheme == "http":
		if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
			return nil
		}
	}
	return errors.New("AUTOMATION_DOCKER_HOST: want unix:///path, or tcp:// with a loopback address: boxes share files and ports with this machine")
}

func (c Config) checkUser() error {
	if c.User == "" {
		return nil
	}
	_, _, err := parseUser(c.User)
	return err
}

func (c Config) checkPaths() error {
	if c.DataDir != "" && !filepath.IsAbs(c.DataDir) {
		return fmt.Errorf("AUTOMATION_DOCKER_DATA_DIR=%q: must be absolute", c.DataDir)
	}
	for _, dir := range c.Workspaces {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return fmt.Errorf("AUTOMATION_DOCKER_WORKSPACES: %q must be absolute and not the root", dir)
		}
	}
	return nil
}

func (c Config) checkEnv() error {
	for name := range c.Env {
		ours := slices.Contains(ownVariables, name) || strings.HasPrefix(name, "AUTOMATION_") || strings.HasPrefix(name, "OH_SESSION_API_KEYS")
		if name == "" || ours {
			return fmt.Errorf("AUTOMATION_DOCKER_ENV: %q cannot be set for boxes", name)
		}
	}
	return nil
}

// ownVariables are set for every box; others of its agent server may be added.
var ownVariables = []string{
	"HOME", "OH_SECRET_KEY", "OH_WORKSPACE_PATH", "OH_CONVERSATIONS_PATH", "OH_PERSISTENCE_DIR", "OH_BASH_EVENTS_DIR",
}

// capabilities are what the settings make of the static ones.
func (c Config) capabilities() sandbox.Capabilities {
	can := Capabilities
	if c.Suspend == SuspendPause {
		can.Suspend, can.SuspendedCost = sandbox.SuspendMemory, "memory and disk of the host"
	}
	return can
}
