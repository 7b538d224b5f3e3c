package scheduler

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"
)

// workspace is where the files of a run lie in its box: the tarball, the environment file beside it, and the directory that
// the command runs in.
type workspace struct {
	tarball string
	dir     string
	fresh   bool // the tarball's directory may not exist yet
}

func (w workspace) env() string { return w.tarball + ".env" }

// contractWorkspace is the layout of OpenHands boxes (contract section 4.2).
func contractWorkspace(run uuid.UUID) workspace {
	return workspace{tarball: contractTarball(run), dir: "/workspace/project"}
}

// localWorkspace is the layout of local mode, where runs share one agent server and differ by directory.
func localWorkspace(run uuid.UUID, base string) workspace {
	return workspace{tarball: contractTarball(run), dir: path.Join(base, "automation-runs", run.String())}
}

// homeWorkspace is the layout of every other backend: all of it below the box's own home, which goes when the box does.
func homeWorkspace(run uuid.UUID, home string) workspace {
	return workspace{
		tarball: path.Join(home, ".automation", run.String()+".tar.gz"),
		dir:     path.Join(home, "project"),
		fresh:   true,
	}
}

func contractTarball(run uuid.UUID) string { return "/tmp/automation-" + run.String() + ".tar.gz" }

// startCommand is the one shell line that a run's command is started by (contract section 4.2): the environment file is
// sourced and removed before anything of the tarball runs, and removed by the trap when that fails.
func startCommand(w workspace, entrypoint string) string {
	env := quote(w.env())
	tarball, dir := quoteUnsafe(w.tarball), quoteUnsafe(w.dir)
	return strings.Join([]string{
		"set +x",
		"trap " + quote("rm -f "+env) + " EXIT",
		"chmod 600 " + env,
		". " + env,
		"rm -f " + env,
		"mkdir -p " + dir,
		"tar xzf " + tarball + " -C " + dir,
		"rm -f " + tarball,
		"cd " + dir,
		"([ ! -f setup.sh ] || bash setup.sh)",
		entrypoint,
	}, " && ")
}

// downloadCommand fetches an http(s) tarball inside the box.
func downloadCommand(w workspace, url string, maxBytes int64, within time.Duration) string {
	output := "-o "
	if w.fresh {
		output = "--create-dirs -o "
	}
	return fmt.Sprintf("curl -fsSL --max-filesize %d --max-time %d %s%s %s",
		maxBytes, int64(within/time.Second), output, quoteUnsafe(w.tarball), quote(url))
}

// removeEnvCommand removes the environment file of a run whose command was not started.
func removeEnvCommand(w workspace) string { return "rm -f -- " + quote(w.env()) }

// quote makes s one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// quoteUnsafe quotes s only where a shell would read more into it than its letters: the contract's own paths stay bare.
func quoteUnsafe(s string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@%+=:,./-_", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return quote(s)
}
