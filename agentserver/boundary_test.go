package agentserver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sources parses every file that goes into the in-box binary.
func sources(t *testing.T, roots ...string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, root := range roots {
		require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			files[path] = file
			return err
		}))
	}
	require.NotEmpty(t, files)
	return files
}

// literals calls f with every text in the code, imports aside.
func literals(files map[string]*ast.File, f func(path, text string)) {
	for path, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if _, isImport := n.(*ast.ImportSpec); isImport {
				return false
			}
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					f(path, text)
				}
			}
			return true
		})
	}
}

func TestS0_006_TheSameBuildCleansAnyMachineByPlainPaths(t *testing.T) {
	t.Run("no provider is named in its code", func(t *testing.T) {
		providers := regexp.MustCompile(`(?i)digital ?ocean|daytona|\be2b\b|\bmodal\b|cloudflare|runtime-api|openhands cloud|kubernetes|firecracker`)
		for path := range sources(t, ".", "../cmd/agentserver") {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Empty(t, providers.FindString(string(text)), path)
		}
	})
	linked := filepath.Join(t.TempDir(), "link")
	places := map[string]string{"a directory": t.TempDir(), "a directory behind a link": linked}
	require.NoError(t, os.Symlink(t.TempDir(), linked))
	if memory, err := os.MkdirTemp("/dev/shm", "box"); err == nil { //nolint:usetesting // another file system
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(memory)) })
		places["another file system"] = memory
	}
	for name, home := range places {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.MkdirAll(filepath.Join(home, ".cache/pip/x"), 0o700))
			b := openBox(t, home)
			defer b.Close()
			answer := decode[struct {
				Items []struct{ Path, Outcome string }
			}](t, b.send("POST", "/api/storage/reclaim", "{}"))
			require.Len(t, answer.Items, 1)
			require.Equal(t, "moved", answer.Items[0].Outcome)
			require.NoDirExists(t, filepath.Join(home, ".cache/pip"))
		})
	}
}

func TestS0_010_TheBoxCannotPauseDeleteOrPayForItself(t *testing.T) {
	files := sources(t, ".", "../cmd/agentserver")
	t.Run("it links nothing of the service", func(t *testing.T) {
		for path, file := range files {
			for _, spec := range file.Imports {
				name, err := strconv.Unquote(spec.Path.Value)
				require.NoError(t, err)
				first, _, _ := strings.Cut(name, "/")
				standard := !strings.Contains(first, ".") && first != "automation"
				ours := name == "automation/agentserver" || strings.HasPrefix(name, "automation/agentserver/")
				require.True(t, standard || ours || name == "golang.org/x/sys/unix" || name == "github.com/coder/websocket", "%s imports %s", path, name)
			}
		}
	})
	t.Run("S0-030 it reads no credential but its own keys", func(t *testing.T) {
		known := []string{
			"HOME", "OH_FILES_ROOT", "OH_CONVERSATIONS_PATH", "OH_WORKSPACE_PATH", "OH_PERSISTENCE_DIR", "OH_BASH_EVENTS_DIR",
			"OH_SESSION_API_KEYS", "SESSION_API_KEY", "_IS_NONE",
			"OH_CONVERSATION_RUNTIME", "OH_CONVERSATION_WORKTREE_ROOT", "OH_CONVERSATION_STORAGE_RETENTION_DAYS", "OH_CONVERSATION_STORAGE_DISK_BUDGET",
			"PATH",                                     // to find git
			"CACHEDIR.TAG", "PG_VERSION", "FETCH_HEAD", // files
			"OH_SECRET_KEY", "OH_INIT_API_KEY", // kept from commands
			"TIMESTAMP", "TIMESTAMP_DESC", "DELETE", "POST", "HEAD", "PATCH", // no environment
			"CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC",
		}
		variable := regexp.MustCompile(`^_?[A-Z][A-Z0-9_]{3,}$`)
		literals(files, func(path, text string) {
			if variable.MatchString(text) {
				require.Contains(t, known, text, path)
			}
		})
	})
	t.Run("it calls nobody", func(t *testing.T) {
		for path, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok {
					if of, ok := call.X.(*ast.Ident); ok {
						name := of.Name + "." + call.Sel.Name
						require.NotContains(t, []string{"http.Client", "http.Get", "http.Post", "http.NewRequest", "http.NewRequestWithContext", "http.DefaultClient", "net.Dial", "net.Dialer"}, name, path)
					}
				}
				return true
			})
		}
	})
	t.Run("no route ends a box", func(t *testing.T) {
		b := newBox(t)
		var deletes []string
		for pattern, handlers := range b.api() {
			if !strings.HasPrefix(pattern, "/api/conversations/{id}/") { // an agent is paused, no box
				require.NotRegexp(t, `pause|suspend|resume|destroy|shutdown`, pattern)
			}
			if _, ok := handlers["DELETE"]; ok {
				deletes = append(deletes, pattern)
			}
		}
		require.ElementsMatch(t, []string{"/api/bash/bash_events", "/api/conversations/{id}"}, deletes)
	})
}

func TestS0_149_TheInBoxPartHasNoRolesAndNoProviders(t *testing.T) {
	var interfaces []string
	for _, file := range sources(t, ".", "../cmd/agentserver") {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if _, ok := spec.Type.(*ast.InterfaceType); ok {
					interfaces = append(interfaces, spec.Name.Name)
				}
			}
			return true
		})
	}
	require.ElementsMatch(t, []string{"Guard", "layout"}, interfaces, "what storage asks of the commands and of a layout, and nothing else")
}

func TestS0_022_NoTimerOfABoxIsNeededForItsStorage(t *testing.T) {
	timers := []string{"NewTimer", "NewTicker", "AfterFunc", "After", "Tick", "Sleep"}
	for path, file := range sources(t, "storage") {
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := call.X.(*ast.Ident); ok && of.Name == "time" {
					require.False(t, slices.Contains(timers, call.Sel.Name), "%s uses time.%s", path, call.Sel.Name)
				}
			}
			return true
		})
	}
	// However long the box was asleep, the next pass does the same.
	b := newBox(t)
	require.NoError(t, os.MkdirAll(filepath.Join(b.home, ".cache/pip/x"), 0o700))
	b.clock.advance(1000 * 24 * 3600 * 1e9)
	require.Contains(t, b.send("POST", "/api/storage/reclaim", `{}`).Body.String(), `"path":".cache/pip","bytes"`)
	require.NoDirExists(t, filepath.Join(b.home, ".cache/pip"))
}

func TestS0_066_ReclaimEndToEndByThisEndpointAlone(t *testing.T) {
	b := newBox(t)
	b.run(`mkdir -p ~/.cache/pip/http ~/go/pkg/mod/m@v1/d && head -c 300000 /dev/zero >~/.cache/pip/http/x && echo a >~/go/pkg/mod/m@v1/d/f &&
		chmod -R a-w ~/go/pkg/mod/m@v1 && git init -q ~/.cache/mine 2>/dev/null || mkdir -p ~/.cache/mine/.git`)
	type plan struct {
		PlanID     string   `json:"plan_id"`
		DryRun     bool     `json:"dry_run"`
		FreedBytes int64    `json:"freed_bytes"`
		Duration   *float64 `json:"duration_seconds"`
		Items      []map[string]any
	}
	dry := decode[plan](t, b.send("POST", "/api/storage/reclaim", `{"dry_run":true}`))
	require.True(t, dry.DryRun)
	require.GreaterOrEqual(t, dry.FreedBytes, int64(300000))
	require.NotNil(t, dry.Duration)
	require.Len(t, dry.Items, 3)
	for _, item := range dry.Items {
		for _, field := range []string{"conversation_id", "tier", "path", "bytes", "files", "outcome", "reason"} {
			require.Contains(t, item, field)
		}
	}
	status := decode[map[string]any](t, b.send("GET", "/api/storage", ""))
	for _, field := range []string{"as_of", "root", "filesystem", "trash_bytes", "conversations"} {
		require.Contains(t, status, field)
	}
	box := status["conversations"].([]any)[0].(map[string]any)
	require.EqualValues(t, dry.FreedBytes, box["next_pass"].(map[string]any)["bytes"])
	require.Equal(t, "idle", box["state"])

	applied := decode[plan](t, b.send("POST", "/api/storage/reclaim", `{"plan_id":"`+dry.PlanID+`"}`))
	require.Equal(t, dry.FreedBytes, applied.FreedBytes)
	require.NoDirExists(t, filepath.Join(b.home, ".cache/pip"))
	require.DirExists(t, filepath.Join(b.home, ".cache/mine/.git"))
	require.Equal(t, 404, b.send("POST", "/api/storage/reclaim", `{"plan_id":"nope"}`).Code)

	t.Run("S0-063 a running command keeps its caches", func(t *testing.T) {
		require.NoError(t, os.MkdirAll(filepath.Join(b.home, ".cache/pip/x"), 0o700))
		started := decode[map[string]any](t, b.send("POST", "/api/bash/start_bash_command", `{"command":"sleep 100"}`))
		refused := decode[plan](t, b.send("POST", "/api/storage/reclaim", `{"tier":"caches"}`))
		require.Zero(t, refused.FreedBytes)
		require.Contains(t, b.send("GET", "/api/storage", "").Body.String(), `"state":"running"`)
		require.Equal(t, 200, b.send("POST", "/api/bash/bash_commands/"+started["id"].(string)+"/stop", "").Code)
		require.DirExists(t, filepath.Join(b.home, ".cache/pip/x"))
	})
}

func TestASecondReclaimIsToldWhichOneRuns(t *testing.T) {
	b := newBox(t)
	require.NoError(t, os.MkdirAll(filepath.Join(b.home, ".cache/pip/x"), 0o700))
	answers := make(chan *httptest.ResponseRecorder, 8)
	for range cap(answers) {
		go func() { answers <- b.send("POST", "/api/storage/reclaim", `{}`) }()
	}
	for range cap(answers) {
		answer := <-answers
		if answer.Code == 409 {
			require.Regexp(t, `^\{"detail":"A reclaim is running","plan_id":"[0-9a-f]+"\}$`, answer.Body.String())
		} else {
			require.Equal(t, 200, answer.Code)
		}
	}
	require.NoDirExists(t, filepath.Join(b.home, ".cache/pip"))
}
