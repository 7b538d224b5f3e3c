package process

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is everything that a box runs: the supervisor, a small agent server, and commands that daemonize.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case SupervisorCommand:
			os.Exit(SupervisorMain(os.Args[2:]))
		case "agent-server":
			os.Exit(serveAgent(os.Args[2:]))
		case "service":
			os.Exit(runService(os.Args[2:]))
		case "daemonize":
			os.Exit(daemonize(os.Args[2:]))
		case "hop":
			os.Exit(hop(os.Args[2:]))
		case "count":
			os.Exit(count(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}

// realServer names an agent server to run instead of the small one.
const realServer = "TEST_AGENT_SERVER"

// serveAgent is as much of an agent server as these tests need. POST /run starts a command in a session of its own.
func serveAgent(args []string) int {
	if program := os.Getenv(realServer); program != "" {
		return exitCode(syscall.Exec(program, append([]string{program}, args...), os.Environ()))
	}
	flags := flag.NewFlagSet("agent-server", flag.ContinueOnError)
	host, port, portFile := flags.String("host", "", ""), flags.String("port", "", ""), flags.String("port-file", "", "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, *port))
	if err != nil {
		return exitCode(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"idle_time": 90.0}`) })
	mux.HandleFunc("GET /environ", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(os.Environ()) })
	mux.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Session-API-Key") != os.Getenv("OH_SESSION_API_KEYS_0") {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		var words []string
		err := json.NewDecoder(r.Body).Decode(&words)
		if err == nil {
			cmd := exec.Command(os.Args[0], words...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			err = cmd.Run()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	fmt.Println("listening", listener.Addr())
	_, chosen, _ := net.SplitHostPort(listener.Addr().String())
	if err := writeFile(*portFile, []byte(chosen)); err != nil {
		return exitCode(err)
	}
	return exitCode(http.Serve(listener, mux))
}

// daemonize leaves its caller the classic way, two forks with a session each, and becomes "count".
func daemonize(args []string) int {
	next := []string{"daemonize", "second", args[1]}
	if args[0] == "second" {
		next = []string{"count", args[1]}
	}
	cmd := exec.Command(os.Args[0], next...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return exitCode(cmd.Start())
}

// hop becomes a program that is never the same process for long: each one writes a line, starts the next and ends.
func hop(args []string) int {
	return exitCode(syscall.Exec("/bin/sh", []string{"sh", "-c", `hop() { echo >> "$0"; hop & }; hop`, args[0]}, os.Environ()))
}

// count writes its pid and then a byte whenever it can, for as long as it lives.
func count(args []string) int {
	file, err := os.OpenFile(args[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return exitCode(err)
	}
	if err := writeFile(args[0]+".pid", fmt.Append(nil, os.Getpid())); err != nil {
		return exitCode(err)
	}
	for wait := (syscall.Timespec{Nsec: 1e6}); ; {
		if _, err := file.WriteString("."); err != nil {
			return exitCode(err)
		}
		_ = syscall.Nanosleep(&wait, nil)
	}
}

func exitCode(err error) int {
	if err == nil || errors.Is(err, io.EOF) {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// ways are how boxes are held in these tests: by cgroup, by supervisor, and by a supervisor without any privilege.
func ways(t *testing.T, run func(t *testing.T, hold string)) {
	if os.Getenv(unprivileged) != "" {
		run(t, HoldSupervisor)
		return
	}
	t.Run("cgroup", func(t *testing.T) {
		_, err := findCgroups(limits{})
		needs(t, err == nil, "a writable cgroup v2")
		run(t, HoldCgroup)
	})
	t.Run("supervisor", func(t *testing.T) { run(t, HoldSupervisor) })
	if os.Geteuid() == 0 {
		t.Run("supervisor of an unprivileged user", func(t *testing.T) { asNobody(t) })
	}
}

// needs skips a test on a machine that lacks something, and fails it in CI, which has everything.
func needs(t *testing.T, there bool, what string) {
	t.Helper()
	switch {
	case there:
	case os.Getenv("CI") == "true":
		t.Fatal("this test needs ", what)
	default:
		t.Skip("this test needs ", what)
	}
}

const unprivileged = "TEST_UNPRIVILEGED"

// nobody is the user id of a user who may do nothing.
const nobody = 65534

// nobodysDir makes a directory of nobody's; those of the testing package can be entered by their owner only.
func nobodysDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nobody-") //nolint:usetesting // see above
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chown(dir, nobody, nobody)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// asNobody runs the test that calls it again as nobody, with some more words in its environment.
func asNobody(t *testing.T, words ...string) {
	t.Helper()
	dir := nobodysDir(t)
	program := filepath.Join(dir, "process.test")
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, self, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command(program, "-test.run", "^"+name+"$", "-test.v", "-test.timeout", "5m")
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "TMPDIR=" + dir, "CI=" + os.Getenv("CI"), "GORACE=atexit_sleep_ms=0", unprivileged + "=1"}, words...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
		t.Fatalf("as nobody: %v\n%s", err, out)
	}
}
