package tests

import (
	"database/sql"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cluster is a PostgreSQL server of one test, which that may stop and start.
type cluster struct {
	t         *testing.T
	bin, data string
	address   string
	as        *syscall.SysProcAttr // a user that PostgreSQL accepts: it refuses root
	running   *exec.Cmd
}

// newCluster makes and starts one.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	require.NoError(t, err)
	if len(found) == 0 {
		missing(t, "the programs of PostgreSQL are not installed")
	}
	dir, err := os.MkdirTemp("", "automation-cluster-") //nolint:usetesting // its user cannot get into a test's own folder
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	c := &cluster{t: t, bin: filepath.Dir(found[len(found)-1]), data: filepath.Join(dir, "data"), address: freeAddress(t)}
	if os.Getuid() == 0 {
		c.as = &syscall.SysProcAttr{Credential: credential(t, "postgres")}
		require.NoError(t, os.Chown(dir, int(c.as.Credential.Uid), int(c.as.Credential.Gid)))
	}
	out, err := c.program("initdb", "-D", c.data, "-U", "postgres", "-A", "trust", "--no-sync").CombinedOutput()
	require.NoError(t, err, "%s", out)
	c.start()
	t.Cleanup(c.crash)
	return c
}

// missing skips a test for want of something that CI has.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

func credential(t *testing.T, name string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup(name)
	require.NoError(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	require.NoError(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (c *cluster) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.SysProcAttr, cmd.Dir = c.as, "/"
	return cmd
}

// url names a database of the server.
func (c *cluster) url(database string) string {
	return "postgres://postgres@" + c.address + "/" + database + "?sslmode=disable"
}

// start starts the server and waits until it answers.
func (c *cluster) start() {
	c.t.Helper()
	host, port, err := net.SplitHostPort(c.address)
	require.NoError(c.t, err)
	c.running = c.program("postgres", "-D", c.data, "-p", port, "-c", "listen_addresses="+host, "-c", "unix_socket_directories=", "-c", "full_page_writes=off")
	require.NoError(c.t, c.running.Start())
	db, err := sql.Open("postgres", c.url("postgres"))
	require.NoError(c.t, err)
	defer db.Close()
	require.Eventually(c.t, func() bool { return db.Ping() == nil }, patience, 50*time.Millisecond, "PostgreSQL answers")
}

// crash ends the server as a crash would: without a word to its clients, and to be recovered at its start.
func (c *cluster) crash() {
	if c.running == nil {
		return
	}
	_ = c.running.Process.Signal(syscall.SIGQUIT)
	_ = c.running.Wait()
	c.running = nil
}

// database makes an empty one and returns the variables that choose it.
func (c *cluster) database(name string) []string {
	c.t.Helper()
	db, err := sql.Open("postgres", c.url("postgres"))
	require.NoError(c.t, err)
	defer db.Close()
	_, err = db.Exec("CREATE DATABASE " + name)
	require.NoError(c.t, err)
	return []string{
		"AUTOMATION_DB_URL=" + c.url(name), "AUTOMATION_RUN_MIGRATIONS_ON_STARTUP=true",
		"AUTOMATION_SECRET_KEY=" + strings.Repeat("MDEy", 10) + "MDE=",
	}
}
