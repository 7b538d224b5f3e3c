package process

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Config is the backend's part of the environment. The words without our prefix are what a box inherits.
type Config struct {
	// Hold picks what holds a box's processes: auto is a cgroup where one can be had, else the supervisor alone.
	Hold string `env:"AUTOMATION_PROCESS_HOLD" envDefault:"auto"`
	// Env is added to the environment of boxes: NAME=value;NAME=value.
	Env map[string]string `env:"AUTOMATION_PROCESS_ENV" envSeparator:";" envKeyValSeparator:"="`
	// MaxProcesses and MaxMemoryBytes bound one box, by its cgroup; 0: no limit.
	MaxProcesses   int64 `env:"AUTOMATION_PROCESS_MAX_PROCESSES" envDefault:"0"`
	MaxMemoryBytes int64 `env:"AUTOMATION_PROCESS_MAX_MEMORY_BYTES" envDefault:"0"`

	Path     string `env:"PATH" envDefault:"/usr/local/bin:/usr/bin:/bin"`
	Lang     string `env:"LANG"`
	LCAll    string `env:"LC_ALL"`
	TZ       string `env:"TZ"`
	CertFile string `env:"SSL_CERT_FILE"`
	CertDir  string `env:"SSL_CERT_DIR"`
}

// The values of Config.Hold.
const (
	HoldAuto       = "auto"
	HoldCgroup     = "cgroup"
	HoldSupervisor = "supervisor"
)

// Options are what the service gives the backend.
type Options struct {
	DataDir    string           // boxes are in DataDir/boxes
	Executable string           // program with the subcommands SupervisorCommand and agent-server
	Log        *slog.Logger     // nil: discarded
	Now        func() time.Time // the clock that activity is told in; nil: the host's
}

// Check tells values that can be read but not used. Its error names the variable.
func (c Config) Check() error {
	if c.Hold != HoldAuto && c.Hold != HoldCgroup && c.Hold != HoldSupervisor {
		return fmt.Errorf("AUTOMATION_PROCESS_HOLD=%q: one of %s, %s, %s", c.Hold, HoldAuto, HoldCgroup, HoldSupervisor)
	}
	for name, n := range map[string]int64{
		"AUTOMATION_PROCESS_MAX_PROCESSES": c.MaxProcesses, "AUTOMATION_PROCESS_MAX_MEMORY_BYTES": c.MaxMemoryBytes,
	} {
		if n < 0 {
			return fmt.Errorf("%s=%d: must not be negative", name, n)
		}
	}
	for name := range c.Env {
		if name == "" || strings.HasPrefix(name, "AUTOMATION_") || strings.HasPrefix(name, "OH_") {
			return fmt.Errorf("AUTOMATION_PROCESS_ENV: %q cannot be set for boxes", name)
		}
	}
	return nil
}

func (b *Backend) findHold(log *slog.Logger) error {
	if b.config.Hold == HoldSupervisor {
		if !b.limits.none() {
			return errors.New("AUTOMATION_PROCESS_MAX_…: limits need AUTOMATION_PROCESS_HOLD=cgroup")
		}
		return nil
	}
	cgroups, err := findCgroups(b.limits)
	switch {
	case err == nil:
		b.cgroups = cgroups
		log.Info("boxes are held by cgroups", "directory", cgroups)
	case b.config.Hold == HoldCgroup:
		return fmt.Errorf("AUTOMATION_PROCESS_HOLD=cgroup: %w", err)
	case !b.limits.none():
		return fmt.Errorf("AUTOMATION_PROCESS_MAX_…: %w", err)
	default:
		log.Info("boxes are held by their supervisors", "error", err)
	}
	return nil
}
