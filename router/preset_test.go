package router_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
)

// packed is one file of a tarball.
type packed struct {
	mode    int64
	content string
}

func unpackTarball(t *testing.T, content []byte) map[string]packed {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(content))
	require.NoError(t, err)
	files, in := map[string]packed{}, tar.NewReader(zip)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[h.Name] = packed{h.Mode, string(must(io.ReadAll(in)))}
	}
}

// code downloads the tarball of an automation.
func (w *world) code(id any) map[string]packed {
	w.t.Helper()
	got := w.call("tok-alice", http.MethodGet, id.(string)+"/tarball", nil)
	require.Equal(w.t, http.StatusOK, got.Code, got.Body)
	return unpackTarball(w.t, got.Body.Bytes())
}

// blobNames lists the stored files.
func (w *world) blobNames() []string { return slices.Sorted(maps.Keys(w.blob.files)) }

func newPrompt(edit ...any) map[string]any {
	body := map[string]any{
		"name": "digest", "prompt": "Summarize the week", "trigger": map[string]any{"type": "cron", "schedule": "0 9 * * 1"},
	}
	for i := 0; i < len(edit); i += 2 {
		body[edit[i].(string)] = edit[i+1]
	}
	return body
}

func TestPreset_TheTarballHoldsWhatThePromptNeeds(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt()).is(http.StatusCreated)
		files := w.code(a["id"])
		require.Equal(t, "Summarize the week", files["prompt.txt"].content)
		require.EqualValues(t, 0o755, files["setup.sh"].mode)
		require.Contains(t, files["setup.sh"].content, "${AUTOMATION_API_URL")
		require.Contains(t, files["setup.sh"].content, "/sdk-version")
		require.Contains(t, files, "main.py")
		require.Contains(t, files, "finish_tool_hook.py")
		require.NotContains(t, files, "repos_config.json")

		repos := []any{
			"http://github.com/octo/demo", map[string]any{"url": "octo/other", "provider": "gitlab", "ref": "main"}, "git@host:a/b.git",
		}
		a = w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt("repos", repos)).is(http.StatusCreated)
		require.JSONEq(t, `[{"url":"https://github.com/octo/demo"},{"url":"octo/other","ref":"main","provider":"gitlab"},{"url":"git@host:a/b.git"}]`,
			w.code(a["id"])["repos_config.json"].content)
		list := w.call("tok-alice", http.MethodGet, "uploads", nil).is(http.StatusOK)
		require.EqualValues(t, 2, list["total"])
		require.EqualValues(t, 2, w.schedules.Load())
	})
}

func TestPreset_RepositoriesThatCannotBeCloned(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		for url, says := range map[string]string{
			"ftp://host/x":   "must start with https://",
			"--upload-pack":  "must start with https://",
			"octo/demo":      "requires explicit 'provider' field",
			"a/b/c":          "must start with https://",
			"":               "at least 1 character",
			"http:/octo.git": "must start with https://",
		} {
			got := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt("repos", url))
			require.Contains(t, got.Body.String(), says, url)
			require.Equal(t, http.StatusUnprocessableEntity, got.Code)
		}
		for _, repo := range []any{
			map[string]any{"url": "octo/demo", "provider": "azure_devops"},
			map[string]any{"url": "octo/demo", "provider": "sourceforge"},
			map[string]any{"url": "https://x.test/y", "ref": "--exec=x"},
			map[string]any{"url": "https://x.test/y", "branch": "x"},
			7,
		} {
			require.Equal(t, http.StatusUnprocessableEntity, w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt("repos", repo)).Code, repo)
		}
		require.Empty(t, w.blob.files, "nothing was made")
	})
}

func TestPreset_ConversationsThatGoOnAreKept(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		trigger := map[string]any{"type": "event", "source": "github", "on": "push", "destination": "continue_conversation", "subject_key_expr": "ref"}
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt("trigger", trigger, "keep_alive", false)).is(http.StatusCreated)
		require.Equal(t, true, a["keep_alive"])
	})
}

func TestPreset_AnEditedPromptIsNewCodeAndTheOldIsGone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt("repos", "https://github.com/octo/demo")).is(http.StatusCreated)
		id := a["id"].(string)
		before := w.blobNames()

		b := w.call("tok-alice", http.MethodPatch, id, map[string]any{"prompt": "Summarize the month", "name": "monthly"}).is(http.StatusOK)
		require.NotEqual(t, a["tarball_path"], b["tarball_path"])
		require.Equal(t, "monthly", b["name"])
		require.Equal(t, "Summarize the month", b["preset_metadata"].(map[string]any)["prompt"])
		require.Equal(t, "Summarize the month", w.code(id)["prompt.txt"].content)
		require.Contains(t, w.code(id), "repos_config.json")
		require.Len(t, w.blobNames(), 1)
		require.NotEqual(t, before, w.blobNames(), "the old file is gone")
		old := uuid.MustParse(strings.TrimPrefix(a["tarball_path"].(string), "oh-internal://uploads/"))
		require.NotNil(t, must(w.store.Upload(t.Context(), org, old)).DeletedAt)

		c := w.call("tok-alice", http.MethodPatch, id, map[string]any{"repos": []any{}}).is(http.StatusOK)
		require.NotContains(t, w.code(id), "repos_config.json")
		require.NotContains(t, c["preset_metadata"], "repos")
		d := w.call("tok-alice", http.MethodPatch, id, map[string]any{"repos": nil, "prompt": "Summarize the month"}).is(http.StatusOK)
		require.Equal(t, c["tarball_path"], d["tarball_path"], "nothing has changed")
	})
}

func TestPreset_CodeThatAnotherAutomationNamesStays(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt()).is(http.StatusCreated)
		other := w.call("tok-alice", http.MethodPost, "", newAutomation("tarball_path", a["tarball_path"])).is(http.StatusCreated)
		w.call("tok-alice", http.MethodPatch, a["id"].(string), map[string]any{"prompt": "Another"}).is(http.StatusOK)
		require.Equal(t, "Summarize the week", w.code(other["id"])["prompt.txt"].content)
	})
}

func TestPreset_ATarballThatWasNotMadeHere(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt()).is(http.StatusCreated)
		id := a["id"].(string)
		w.call("tok-alice", http.MethodPatch, id, map[string]any{"tarball_path": "https://example.test/x.tar.gz"}).is(http.StatusOK)
		b := w.call("tok-alice", http.MethodPatch, id, map[string]any{"prompt": "Another"}).is(http.StatusOK)
		require.Equal(t, "https://example.test/x.tar.gz", b["tarball_path"])
		require.Equal(t, "Another", b["prompt"], "only the column")
		w.call("tok-alice", http.MethodPatch, id, map[string]any{"repos": []any{"https://github.com/octo/demo"}}).is(http.StatusUnprocessableEntity)
	})
}

func TestPreset_ATemplateIsUsedOncePerOrganization(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		template := map[string]any{"id": "weekly", "version": "2"}
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt("template", template)).is(http.StatusCreated)
		require.Equal(t, map[string]any{
			"preset_type": "prompt", "prompt": "Summarize the week", "template": map[string]any{"id": "weekly", "version": "2", "config": nil},
		}, a["preset_metadata"])
		again := w.call("tok-bob", http.MethodPost, "preset/prompt", newPrompt("template", template, "name", "other")).is(http.StatusOK)
		require.Equal(t, a["id"], again["id"])
		require.Len(t, w.blobNames(), 1)
		w.call("tok-eve", http.MethodPost, "preset/prompt", newPrompt("template", template)).is(http.StatusCreated)
	})
}

func TestPreset_NothingIsLeftWhereTheAutomationCouldNotBeMade(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt()).is(http.StatusCreated)
		w.blob.fail = true
		require.Equal(t, http.StatusInternalServerError, w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt()).Code)
		require.Equal(t, http.StatusInternalServerError, w.call("tok-alice", http.MethodPatch, a["id"].(string), map[string]any{"prompt": "x"}).Code)
		w.blob.fail = false
		b := w.call("tok-alice", http.MethodGet, a["id"].(string), nil).is(http.StatusOK)
		require.Equal(t, a["tarball_path"], b["tarball_path"])
		require.Equal(t, "Summarize the week", w.code(a["id"])["prompt.txt"].content)
	})
}

func TestTags_OfOneOrganization(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, tags := range [][]any{{"b", "a"}, {"a"}, {"c"}} {
			w.call("tok-alice", http.MethodPost, "", newAutomation("tags", tags)).is(http.StatusCreated)
		}
		gone := w.call("tok-alice", http.MethodPost, "", newAutomation("tags", []any{"gone"})).is(http.StatusCreated)
		w.call("tok-alice", http.MethodDelete, gone["id"].(string), nil).is(http.StatusNoContent)
		require.JSONEq(t, `{"tags":[{"tag":"a","count":2},{"tag":"b","count":1},{"tag":"c","count":1}]}`,
			w.call("tok-bob", http.MethodGet, "tags", nil).Body.String())
		require.JSONEq(t, `{"tags":[]}`, w.call("tok-eve", http.MethodGet, "tags", nil).Body.String())
	})
}

func TestPreset_AnotherOrganizationsAnswersAreThoseForAnUnknownID(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.call("tok-alice", http.MethodPost, "preset/prompt", newPrompt()).is(http.StatusCreated)
		unknown := w.call("tok-eve", http.MethodPatch, uuid.NewString(), map[string]any{"prompt": "mine"})
		got := w.call("tok-eve", http.MethodPatch, a["id"].(string), map[string]any{"prompt": "mine"})
		require.Equal(t, unknown.Code, got.Code)
		require.Equal(t, unknown.Body.String(), got.Body.String())
		require.Equal(t, http.StatusForbidden, w.call("tok-bob", http.MethodPatch, a["id"].(string), map[string]any{"prompt": "mine"}).Code)
		require.Len(t, w.blobNames(), 1)
		stored := must(w.store.Automation(t.Context(), org, uuid.MustParse(a["id"].(string))))
		require.Equal(t, models.AutomationActive, stored.State)
		require.Equal(t, "Summarize the week", *stored.Prompt)
	})
}
