package tests

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"automation/tests/dockerengine"
)

// composition is what the tests read of a compose file.
type composition struct {
	Services map[string]struct {
		Environment map[string]string
		ReadOnly    bool `yaml:"read_only"`
	}
}

// composed is the environment that a compose file gives the service, with the variables of somebody who starts it filled in.
func composed(t *testing.T, page string, variables map[string]string) map[string]string {
	t.Helper()
	var file composition
	require.NoError(t, yaml.Unmarshal([]byte(document(t, page)), &file))
	service := file.Services["automation"]
	require.True(t, service.ReadOnly)
	env := map[string]string{}
	open := regexp.MustCompile(`^\$\{(\w+)(:-|:\?)(.*)\}$`)
	for name, value := range service.Environment {
		if m := open.FindStringSubmatch(value); m != nil {
			filled, given := variables[m[1]]
			if !given {
				require.Equal(t, ":-", m[2], "%s: %s needs %s", page, name, m[1])
				filled = m[3]
			}
			value = filled
		}
		env[name] = value
	}
	return env
}

// instruction is the list of an instruction of the Dockerfile.
func instruction(t *testing.T, pattern string) []string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + pattern + ` \[(.*)\]$`).FindStringSubmatch(document(t, "Dockerfile"))
	require.NotNil(t, m, pattern)
	return strings.Split(strings.ReplaceAll(strings.ReplaceAll(m[1], `"`, ""), ", ", ","), ",")
}

// The service runs as in a container of each compose file: with that environment alone, a read-only root left out, and is asked
// by the health command of the image.
func TestTheServiceStartsAsTheComposeFilesSay(t *testing.T) {
	t.Parallel()
	require.Contains(t, document(t, "Dockerfile"), "\nFROM scratch\n")
	require.Equal(t, []string{"/automation"}, instruction(t, "ENTRYPOINT"))
	health := instruction(t, "HEALTHCHECK .* CMD")
	require.Equal(t, "/automation", health[0])
	given := map[string]string{
		"AUTOMATION_LOCAL_API_KEY": "k", "AUTOMATION_DB_PASS": "p", "AUTOMATION_SERVICE_KEY": "s",
		"AUTOMATION_SECRET_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
	}
	eachDatabase(t, func(t *testing.T, chosen []string) {
		page := "docs/compose/sqlite.yaml"
		if chosen != nil {
			page = "docs/compose/postgres.yaml"
		}
		env := composed(t, page, given)
		env["AUTOMATION_DATA_DIR"] = filepath.Join(t.TempDir(), "data") // the image says /data/automation
		env["AUTOMATION_LISTEN"] = freeAddress(t)                       // a network of its own has the port free
		if chosen != nil {
			database(t, env)
		}
		runs(t, env, instruction(t, "CMD"), health[1:])
	})
}

// runs starts the service with nothing but env, waits until the health command is content, and stops it.
func runs(t *testing.T, env map[string]string, args, health []string) {
	t.Helper()
	var list []string
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	c := exec.Command(build(t), args...)
	said := new(strings.Builder)
	c.Env, c.Stderr = list, said
	require.NoError(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	healthy := func() bool { return command(t, list, health...).code == 0 }
	for deadline := time.Now().Add(patience); !healthy(); {
		select {
		case err := <-ended:
			t.Fatalf("%v: %s", err, said)
		default:
			require.True(t, time.Now().Before(deadline), "the service is healthy")
		}
	}
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.NoError(t, <-ended)
	require.NotEqual(t, 0, command(t, list, health...).code, "one that has stopped is not healthy")
}

// image builds the image of the Dockerfile from the static binary of these tests, as make build and docker build do, and returns
// the command that talks to its engine.
func image(t *testing.T) (docker func(args ...string) (string, error)) {
	t.Helper()
	host := dockerengine.Host(t)
	docker = func(args ...string) (string, error) {
		c := exec.Command("docker", args...)
		c.Env = append(os.Environ(), "DOCKER_HOST="+host, "DOCKER_BUILDKIT=0")
		out, err := c.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	folder := t.TempDir()
	out, err := exec.Command("cp", "../Dockerfile", "../LICENSE", folder).CombinedOutput()
	require.NoError(t, err, "%s", out)
	program, err := os.ReadFile(build(t))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(folder, "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "bin", "automation"), program, 0o755))
	text, err := docker("build", "-q", "-t", testImage, folder)
	require.NoError(t, err, text)
	t.Cleanup(func() { _, _ = docker("image", "rm", "-f", testImage) })
	return docker
}

const testImage = "automation-image-tests"

// The image of the Dockerfile runs as each compose file says, in a container of a real engine: its environment, a read-only root,
// no capability, a volume for its data; the engine's own health check is content, and a stop is clean.
func TestTheImageRunsAsTheComposeFilesSay(t *testing.T) {
	docker := image(t)
	ok := func(args ...string) string {
		t.Helper()
		out, err := docker(args...)
		require.NoError(t, err, "docker %v: %s", args, out)
		return out
	}
	given := map[string]string{
		"AUTOMATION_LOCAL_API_KEY": "k", "AUTOMATION_DB_PASS": "p", "AUTOMATION_SERVICE_KEY": "s",
		"AUTOMATION_SECRET_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
	}
	for page, network := range map[string]string{"docs/compose/sqlite.yaml": "none", "docs/compose/postgres.yaml": "host"} {
		t.Run(filepath.Base(page), func(t *testing.T) {
			env := composed(t, page, given)
			if network == "host" { // where the tests' own PostgreSQL listens
				database(t, env)
				env["AUTOMATION_LISTEN"], env["AUTOMATION_METRICS_LISTEN"] = freeAddress(t), freeAddress(t)
			}
			args := []string{
				"run", "-d", "--network", network, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
				"-v", "/data", "--health-interval", "1s",
			}
			for name, value := range env {
				args = append(args, "-e", name+"="+value)
			}
			id := ok(append(args, testImage)...)
			defer func() { _, _ = docker("rm", "-f", "-v", id) }()
			require.Eventually(t, func() bool { return ok("inspect", "-f", "{{.State.Health.Status}}", id) == "healthy" }, patience, 200*time.Millisecond,
				"the health command is content")
			ok("exec", id, "/automation", "healthcheck", "ready")
			ok("stop", "-t", "40", id)
			require.Equal(t, "0", ok("inspect", "-f", "{{.State.ExitCode}}", id), ok("logs", id))
			require.Contains(t, ok("logs", id), `"msg":"stopped"`)
			out, err := docker("run", "--rm", "--entrypoint", "/bin/sh", testImage, "-c", "true")
			require.Error(t, err, "the image has no shell: %s", out)
		})
	}
}

// database puts a fresh one of the tests' PostgreSQL into the variables of a compose file.
func database(t *testing.T, env map[string]string) {
	t.Helper()
	at, err := url.Parse(strings.TrimPrefix(postgres(t)[0], "AUTOMATION_DB_URL="))
	require.NoError(t, err)
	env["AUTOMATION_DB_HOST"], env["AUTOMATION_DB_PORT"] = at.Hostname(), at.Port()
	env["AUTOMATION_DB_NAME"], env["AUTOMATION_DB_USER"] = strings.Trim(at.Path, "/"), at.User.Username()
	env["AUTOMATION_DB_PASS"], _ = at.User.Password()
}

func TestTheUnitKeepsBoxesAndGivesTheStopItsTime(t *testing.T) {
	unit := document(t, "docs/systemd/automation.service")
	for _, line := range []string{
		"ExecStart=/usr/local/bin/automation serve", "Type=notify", "WatchdogSec=60", "KillMode=process", "Delegate=yes", "TimeoutStopSec=40", "NoNewPrivileges=yes",
		"RestartPreventExitStatus=78", "StateDirectory=automation",
	} {
		require.Contains(t, unit, "\n"+line+"\n")
	}
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return // nothing here that could read it
	}
	path := filepath.Join(t.TempDir(), "automation.service")
	text := strings.Replace(unit, "/usr/local/bin/automation", build(t), 1)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	out, err := exec.Command(verify, "verify", "--man=no", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "automation.service:", "the reader has no complaint")
}
