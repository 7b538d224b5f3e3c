package tests

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of so many MiB on a new folder.
func smallDisk(t *testing.T, dir string, mebibytes int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", mebibytes)); err != nil {
		missing(t, "a file system cannot be mounted here: "+err.Error())
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// fill takes all the room in a folder; free gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "somebody-elses-file")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	for chunk := make([]byte, 1<<20); ; {
		if _, err := f.Write(chunk); err == nil {
			continue
		}
		if chunk = chunk[:len(chunk)/2]; len(chunk) == 0 {
			return func() { require.NoError(t, os.Remove(path)) }
		}
	}
}

// newAutomation is the body of one that runs a script that was uploaded.
func newAutomation(name string) object {
	return object{
		"name": name, "entrypoint": "bash main.sh", "tarball_path": "https://example.test/code.tar.gz",
		"trigger": object{"type": "cron", "schedule": "0 0 1 1 *"},
	}
}

// works shows that a service starts runs, ends them and is ready.
func (s *server) works(automation string) {
	s.t.Helper()
	run := s.running(automation).text("id")
	s.call(http.MethodPost, "/runs/"+run+"/complete", object{"status": "COMPLETED"}, http.StatusOK)
	s.await("/runs/"+run, "its box is deleted", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
	require.Eventually(s.t, func() bool {
		status, _ := s.probe("/ready")
		return status == http.StatusOK
	}, patience, 100*time.Millisecond, "the service is ready")
}

// probe asks one of the routes without a login.
func (s *server) probe(path string) (status int, answer string) {
	s.t.Helper()
	return fetch(s.t, strings.TrimSuffix(s.base, "/v1")+path)
}

func TestFault_TheDiskOfTheDatabaseIsFull(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	smallDisk(t, disk, 8)
	s := start(t, "AUTOMATION_RUN_EXIT_GRACE_SECONDS=0", "AUTOMATION_DB_URL=sqlite:///"+disk+"/automation.db")
	works := s.automation("exec sleep 60", nil)
	s.works(works)

	free := fill(t, disk)
	made, refused := 0, ""
	for n := 0; refused == "" && n < 20_000; n++ { // some room is left in what SQLite has already taken
		body := newAutomation(strings.Repeat("n", 500))
		body["description"] = strings.Repeat("x", 2000)
		switch status, answer := s.try(http.MethodPost, "", body); status {
		case http.StatusCreated:
			made++
		default:
			require.Equal(t, http.StatusInsufficientStorage, status, "%s", answer)
			refused = string(answer)
		}
	}
	require.Contains(t, refused, "no room left on its disk")
	require.EqualValues(t, made+1, s.call(http.MethodGet, "?limit=1", nil, http.StatusOK).get("total"), "what was answered is there, and nothing else")
	require.Contains(t, s.log(), `"error_kind":"disk_full"`)

	s.kill() // and nothing is half-written
	free()
	s.launch()
	require.EqualValues(t, made+1, s.call(http.MethodGet, "?limit=1", nil, http.StatusOK).get("total"))
	s.works(works)
}

func TestFault_TheDiskOfStoredFilesIsFull(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	smallDisk(t, disk, 4)
	s := start(t, "AUTOMATION_RUN_EXIT_GRACE_SECONDS=0", "LOCAL_STORAGE_PATH="+disk)
	works := s.automation("exec sleep 60", nil)
	s.works(works)
	before := files(t, disk)

	free := fill(t, disk)
	status, answer := s.try(http.MethodPost, "/uploads?name=big", tarball(t, "main.sh", "true"))
	require.Equal(t, http.StatusInsufficientStorage, status, "%s", answer)
	require.Contains(t, string(answer), "no room left on its disk")
	failed := s.call(http.MethodGet, "/uploads?status=FAILED", nil, http.StatusOK)
	require.EqualValues(t, 1, failed.get("total"), "and it is shown: %v", failed)
	s.works(works) // although the output cannot be stored
	free()
	require.Equal(t, before, files(t, disk), "nothing half-written is left")
	s.works(works)
	s.call(http.MethodPost, "/uploads?name=big", tarball(t, "main.sh", "true"), http.StatusCreated)
}

// files lists the files below a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, path)
		}
		return err
	}))
	return all
}

func TestFault_TheDiskOfBoxesIsFull(t *testing.T) {
	t.Parallel()
	s := prepare(t, build(t), t.TempDir(), "AUTOMATION_RUN_EXIT_GRACE_SECONDS=0", "AUTOMATION_SANDBOX_PROVISION_RETRY_DELAY=1", "AUTOMATION_SANDBOX_PROVISION_MAX_ATTEMPTS=2")
	disk := filepath.Join(s.data, "boxes")
	smallDisk(t, disk, 16)
	s.launch()
	works := s.automation("exec sleep 60", nil)

	// a run fills it
	greedy := s.automation("head -c 100M /dev/zero >big || exit 7", nil)
	run := s.call(http.MethodPost, "/"+greedy+"/dispatch", nil, http.StatusCreated)
	s.await("/runs/"+run.text("id"), "the run fails and its box is deleted", func(o object) bool {
		return o.text("status") == "FAILED" && o.get("exit_code") == 7.0 && o.text("sandbox", "observed") == "deleted"
	})
	s.works(works)

	// somebody else fills it
	free := fill(t, disk)
	run = s.call(http.MethodPost, "/"+works+"/dispatch", nil, http.StatusCreated)
	shown := s.await("/runs/"+run.text("id"), "no box can be made", func(o object) bool { return o.text("status") == "FAILED" })
	require.Contains(t, shown.text("status_detail", "detail"), "no space left on device")
	require.Equal(t, "deleted", shown.text("cleanup", "state"), "there is nothing to remove: %v", shown)
	free()
	s.works(works)
	require.Eventually(t, func() bool {
		left, err := os.ReadDir(disk)
		return err == nil && len(left) == 0
	}, patience, 100*time.Millisecond, "nothing half-made is left")
}

func TestFault_TheLimitOfOpenFilesIsReached(t *testing.T) {
	t.Parallel()
	s := prepare(t, build(t), t.TempDir(), "AUTOMATION_RUN_EXIT_GRACE_SECONDS=0")
	s.under = []string{"prlimit", "--nofile=96:96"}
	s.launch()
	works := s.automation("exec sleep 60", nil)
	s.works(works)
	address, _, _ := strings.Cut(strings.TrimPrefix(s.base, "http://"), "/")
	var held []net.Conn
	for range 150 {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		held = append(held, c)
	}
	require.Eventually(t, func() bool { return strings.Contains(s.log(), "too many open files") }, patience, 10*time.Millisecond, "it is told")
	for _, c := range held {
		require.NoError(t, c.Close())
	}
	s.works(works)
	require.NotContains(t, s.log(), `"event":"panic`)
	for line := range strings.Lines(s.log()) {
		require.True(t, strings.HasPrefix(line, "{"), "a line like all others: %s", line)
	}
}
