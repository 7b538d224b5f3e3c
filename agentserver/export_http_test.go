package agentserver

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// talk makes a conversation with a history in which these secrets are planted, and returns its directory.
func (b *box) talk(secrets ...string) string {
	b.t.Helper()
	require.Equal(b.t, 201, b.create(firstID, ""))
	dir := filepath.Join(b.home, "histories", strings.ReplaceAll(firstID, "-", ""))
	b.write(dir+"/base_state.json", fmt.Sprintf(`{"execution_status":"paused","agent":{"llm":{"api_key":%q,"model":"m"}},`+
		`"secret_registry":{"secret_sources":{"A":{"kind":"StaticSecret","value":%q}}}}`, secrets[0], secrets[1]))
	b.write(dir+"/events/event-00000-a.json", fmt.Sprintf(`{"text":"it printed %s", "n": 1.50}`, secrets[1]))
	b.write(dir+"/events/event-00001-b.json", `{"text":"nothing  secret"}`)
	b.write(dir+"/notes.jsonl", fmt.Sprintf("{\"env\":[%q]}\n{\"a\":1}\n", secrets[2]))
	b.write(dir+"/plain.txt", "TOKEN="+secrets[2]+"\n")
	b.write(dir+"/acp/state.json", `{"x":"`+secrets[0]+`"}`)
	b.write(dir+"/events/half.tmp", secrets[0])
	require.NoError(b.t, os.Symlink("/etc/passwd", dir+"/link.json"))
	require.NoError(b.t, syscall.Mkfifo(dir+"/pipe.json", 0o600))
	return dir
}

func (b *box) write(path, text string) {
	b.t.Helper()
	require.NoError(b.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(b.t, os.WriteFile(path, []byte(text), 0o600))
}

// unzipped reads a whole zip, which checks it.
func unzipped(t *testing.T, whole []byte) map[string]string {
	t.Helper()
	archive, err := zip.NewReader(bytes.NewReader(whole), int64(len(whole)))
	require.NoError(t, err)
	files := map[string]string{}
	for _, f := range archive.File {
		in, err := f.Open()
		require.NoError(t, err)
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		if !strings.HasSuffix(f.Name, "/") {
			files[f.Name] = string(text)
		}
	}
	return files
}

func TestS0_029_S0_072_AHistoryIsExportedWholeAndWithoutSecrets(t *testing.T) {
	b := newBox(t, withHistories)
	secrets := []string{"planted-model-key", "planted custom secret", "planted-environment"}
	b.talk(secrets...)
	target := "/api/file/download-trajectory/" + firstID
	answer := b.send("GET", target, "")
	require.Equal(t, 200, answer.Code)
	require.Equal(t, "application/octet-stream", answer.Header().Get("Content-Type"))
	require.Equal(t, strconv.Itoa(answer.Body.Len()), answer.Header().Get("Content-Length"))
	require.Contains(t, answer.Header().Get("Content-Disposition"), `filename="aaaaaaaa000040008000000000000001.zip"`)
	files := unzipped(t, answer.Body.Bytes())
	const top = "aaaaaaaa000040008000000000000001/"
	require.ElementsMatch(t, []string{
		top + "base_state.json", top + "meta.json", top + "events/event-00000-a.json", top + "events/event-00001-b.json",
		top + "notes.jsonl", top + "plain.txt",
	}, namesOf(files))
	for name, text := range files {
		for _, secret := range secrets {
			require.NotContains(t, text, secret, name)
		}
	}
	require.Equal(t, `{"text":"it printed **********", "n": 1.50}`, files[top+"events/event-00000-a.json"]) //nolint:testifylint // to the byte
	require.Equal(t, `{"text":"nothing  secret"}`, files[top+"events/event-00001-b.json"])                  //nolint:testifylint // to the byte
	require.Equal(t, "TOKEN=**********\n", files[top+"plain.txt"])
	for target, status := range map[string]int{
		"/api/file/download-trajectory/11111111-1111-1111-1111-111111111111": 404, "/api/file/download-trajectory/nope": 422,
		"/download-trajectory/" + firstID: 404, "/archive?path=/": 404,
	} {
		require.Equal(t, status, b.send("GET", target, "").Code, target)
	}
	require.Equal(t, 401, b.serve(httptest.NewRequest(http.MethodGet, target, nil)).Code)
	left, err := os.ReadDir(filepath.Join(b.home, ".openhands/storage"))
	require.NoError(t, err)
	require.Empty(t, left, "what is written to send it has no name")
}

func namesOf(m map[string]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

func TestS0_072_S0_074_ExportsAtTheSameTimeAreAllWhole(t *testing.T) {
	b := newBox(t, withHistories)
	dir := b.talk("planted-model-key", "planted custom secret", "planted-environment")
	for i := range 50 {
		b.write(fmt.Sprintf("%s/events/event-%05d-x.json", dir, i+2), `{"text":"`+strings.Repeat("x", i*100)+`"}`)
	}
	want := unzipped(t, b.send("GET", "/api/file/download-trajectory/"+firstID, "").Body.Bytes())
	require.Len(t, want, 56)
	var all sync.WaitGroup
	answers := make([]*httptest.ResponseRecorder, 8)
	for i := range answers {
		target := "/api/file/download-trajectory/" + firstID
		if i%2 == 1 {
			target = "/api/file/archive?format=tar.gz&path=" + dir
		}
		all.Go(func() { answers[i] = b.send("GET", target, "") })
	}
	all.Wait()
	for i, answer := range answers {
		require.Equal(t, 200, answer.Code)
		if i%2 == 0 {
			require.Equal(t, want, unzipped(t, answer.Body.Bytes()))
		} else {
			require.Len(t, untarred(t, answer.Body.Bytes()), 59, "with the acp state, the half file and the manifest")
		}
	}
}

func untarred(t *testing.T, whole []byte) map[string]string {
	t.Helper()
	packed, err := gzip.NewReader(bytes.NewReader(whole))
	require.NoError(t, err)
	archive := tar.NewReader(packed)
	files := map[string]string{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(archive)
		require.NoError(t, err)
		if header.Typeflag == tar.TypeReg {
			files[header.Name] = string(text)
		}
	}
}

func (b *box) git(dir string, arguments ...string) string {
	b.t.Helper()
	call := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"}, arguments...)...)
	call.Dir = dir
	output, err := call.CombinedOutput()
	require.NoError(b.t, err, string(output))
	return strings.TrimSpace(string(output))
}

// repository makes a checkout with a commit, changes since, secrets, dependencies, and traps in what an agent may write.
func (b *box) repository(ran string) string {
	at := filepath.Join(b.home, "project", "repo")
	b.write(at+"/.gitignore", "node_modules/\n")
	b.write(at+"/.gitattributes", "*.txt filter=trap diff=trap\n")
	b.write(at+"/a.txt", "one\n")
	b.write(at+"/gone.txt", "x\n")
	b.write(at+"/build/tracked.js", "1\n")
	b.git(at, "init", "-q")
	b.git(at, "add", "-f", ".")
	b.git(at, "commit", "-qm", "first")
	b.write(at+"/a.txt", "one\ntwo\n")
	require.NoError(b.t, os.Remove(at+"/gone.txt"))
	b.write(at+"/new.txt", "new\n")
	b.write(at+"/.env", "KEY=planted-secret\n")
	b.write(at+"/certs/server.key", "planted-secret\n")
	b.write(at+"/node_modules/x/index.js", "x\n")
	b.write(at+"/build/tracked.js", "2\n")
	b.write(at+"/odd\xff name/f", "odd\n")
	require.NoError(b.t, os.Symlink("/etc/passwd", at+"/link"))
	require.NoError(b.t, syscall.Mkfifo(at+"/pipe", 0o600))
	trap := "sh -c 'touch " + ran + "; cat'"
	for name, value := range map[string]string{
		"filter.trap.clean": trap, "filter.trap.process": trap, "diff.trap.textconv": trap, "diff.trap.command": trap, "core.fsmonitor": trap,
		"core.hooksPath": filepath.Join(at, "hooks"), "remote.origin.url": "https://user:planted-secret@example.com/r.git",
	} {
		b.git(at, "config", name, value)
	}
	return at
}

func TestS0_074_AWorkspaceIsExportedAsPatchOrTarball(t *testing.T) {
	b := newBox(t, withHistories)
	ran := filepath.Join(b.home, "ran")
	at := b.repository(ran)
	head := b.git(at, "rev-parse", "HEAD")
	index, err := os.ReadFile(at + "/.git/index")
	require.NoError(t, err)
	send := func(query string) *httptest.ResponseRecorder {
		t.Helper()
		answer := b.send("GET", "/api/file/archive?path="+filepath.Join(b.home, "project")+query, "")
		require.Equal(t, 200, answer.Code, answer.Body.String())
		require.NotContains(t, fmt.Sprint(answer.Header()), "planted-secret")
		return answer
	}
	t.Run("a patch brings the changes back", func(t *testing.T) {
		answer := send("&base_ref=HEAD")
		require.Equal(t, "text/x-patch; charset=utf-8", answer.Header().Get("Content-Type"))
		require.Equal(t, "main", answer.Header().Get("X-Archive-Branch"))
		require.Equal(t, []string{head, head}, []string{answer.Header().Get("X-Archive-Head-Commit"), answer.Header().Get("X-Archive-Base-Commit")})
		require.Equal(t, "https:%2F%2Fexample.com%2Fr.git", answer.Header().Get("X-Archive-Repo-Remote"))
		require.NotContains(t, answer.Body.String(), "planted-secret")
		copied := filepath.Join(b.home, "copied")
		b.git(b.home, "clone", "-q", at, copied)
		b.write(copied+".patch", answer.Body.String())
		b.git(copied, "apply", copied+".patch")
		text, err := os.ReadFile(copied + "/a.txt")
		require.NoError(t, err)
		require.Equal(t, "one\ntwo\n", string(text))
		require.NoFileExists(t, copied+"/gone.txt")
		require.FileExists(t, copied+"/new.txt")
		require.FileExists(t, copied+"/odd\xff name/f")
		tracked, err := os.ReadFile(copied + "/build/tracked.js")
		require.NoError(t, err)
		require.Equal(t, "1\n", string(tracked), "left out by default")
	})
	t.Run("without a remote everything is new", func(t *testing.T) {
		answer := send("")
		require.Contains(t, answer.Body.String(), "+one\n+two\n")
		require.Empty(t, answer.Header().Get("X-Archive-Base-Commit"))
		require.Equal(t, "auto", answer.Header().Get("X-Archive-Base-Ref"))
	})
	t.Run("against the branch at origin", func(t *testing.T) {
		b.git(at, "update-ref", "refs/remotes/origin/main", head)
		require.NotContains(t, send("").Body.String(), "new file mode 100644\nindex 0000000..0000000\n+one")
		require.Equal(t, head, send("").Header().Get("X-Archive-Base-Commit"))
	})
	t.Run("a tarball", func(t *testing.T) {
		files := untarred(t, send("&format=tar.gz").Body.Bytes())
		require.ElementsMatch(t, []string{
			"repo/.gitignore", "repo/.gitattributes", "repo/a.txt", "repo/new.txt", "repo/odd\xff name/f", "repo/archive_manifest.json",
		}, namesOf(files))
		require.Contains(t, files["repo/archive_manifest.json"], `"file_count": 5`)
		all := untarred(t, send("&format=tar.gz&use_default_excludes=false&exclude=*.txt").Body.Bytes())
		require.Contains(t, all, "repo/node_modules/x/index.js")
		require.NotContains(t, all, "repo/a.txt")
		require.NotContains(t, all, "repo/.env")
		require.NotContains(t, all, "repo/.git/config", "never")
		require.Contains(t, all, "repo/.git/HEAD")
		require.Contains(t, untarred(t, send("&format=tar.gz&include_secrets=true").Body.Bytes()), "repo/.env", "when asked")
		require.Contains(t, send("&include_secrets=true").Body.String(), "planted-secret")
	})
	require.NoFileExists(t, ran, "nothing that the agent configured was run")
	after, err := os.ReadFile(at + "/.git/index")
	require.NoError(t, err)
	require.Equal(t, index, after, "the repository's own index is as it was")

	for query, want := range map[string]string{
		"path=" + at + "&base_ref=nosuch": `400 {"detail":"base_ref 'nosuch' could not be resolved"}`,
		"path=" + at + "&base_ref=--x":    `400 {"detail":"base_ref must not start with '-'"}`,
		"path=" + at + "/nope":            `404 {"detail":"Directory not found"}`,
		"path=" + at + "/a.txt":           `404 {"detail":"Directory not found"}`,
		"path=relative":                   `400 {"detail":"Path must be absolute"}`,
		"path=" + b.home + "/histories":   `404 {"detail":"Directory not found"}`,
		"path=" + at + "/build":           `400 {"detail":"Not a git repository: Not a git repository: ` + at + `/build"}`,
	} {
		answer := b.send("GET", "/api/file/archive?"+query, "")
		require.Equal(t, want, fmt.Sprint(answer.Code, " ", answer.Body.String()))
	}
	require.Equal(t, 422, b.send("GET", "/api/file/archive?format=zip&path="+at, "").Code)
	require.Equal(t, 422, b.send("GET", "/api/file/archive", "").Code)
}

func TestS0_076_ExportsAreNoActivity(t *testing.T) {
	b := newBox(t, withHistories)
	b.talk("planted-model-key", "planted custom secret", "planted-environment")
	at := b.repository(filepath.Join(b.home, "ran"))
	b.clock.advance(7e9)
	require.Equal(t, 200, b.send("GET", "/api/file/download-trajectory/"+firstID, "").Code)
	require.Equal(t, 200, b.send("GET", "/api/file/archive?path="+at, "").Code)
	require.Equal(t, 404, b.send("GET", "/api/file/archive?path=/nope", "").Code)
	require.Equal(t, 7, b.idleSeconds())
}
