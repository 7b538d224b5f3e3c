package scheduler

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox/sandboxtest"
)

func TestDispatch_Tarballs(t *testing.T) {
	cases := []struct {
		name, path string
		stderr     string
		exit       int
		want       string
		disabled   bool
	}{
		{"fetched", "https://example.test/code.tar.gz", "", 0, "", false},
		{"gone", "https://example.test/code.tar.gz", "curl: (22) The requested URL returned error: 404", 22,
			"External tarball URL is not accessible: https://example.test/code.tar.gz. HTTP error: curl: (22) The requested URL returned error: 404", true},
		{"down", "https://example.test/code.tar.gz", "curl: (22) The requested URL returned error: 503", 22,
			"Failed to download tarball (exit=22): curl: (22) The requested URL returned error: 503", false},
		{"too big", "http://example.test/code.tar.gz", "", 63, "Tarball exceeds size limit (100 MB)", false},
		{"scheme", "ftp://example.test/code.tar.gz", "", 0, "Unsupported tarball_path: 'ftp://example.test/code.tar.gz'", false},
		{"none", "", "", 0, "Unsupported tarball_path: ''", false},
		{"upload unknown", "oh-internal://uploads/" + recordedRun.String(), "", 0, "Tarball upload not found: " + recordedRun.String(), true},
		{"upload malformed", "oh-internal://uploads/../x", "", 0, "Tarball upload not found: ../x", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, func(r *rig) {
				r.auto = r.automation(func(a *models.Automation) { a.TarballPath = c.path })
				r.fake.Watch(func(call sandboxtest.Call) {
					if call.Method == "Inspect" {
						r.agent(call.Workspace).OnStart(func(command *sandboxtest.Command) {
							if strings.HasPrefix(command.Text, "curl ") {
								command.Stderr, command.Exit = c.stderr, &c.exit
							}
						})
					}
				})
				run := r.pending()
				r.execute()
				run = r.run(run.ID)
				a, err := r.store.Automation(r.Context(), r.auto.OrgID, r.auto.ID)
				require.NoError(r, err)
				if c.want == "" {
					require.Equal(r, models.RunRunning, run.Status)
					commands := r.agent(*run.BoxID).Commands()
					require.Len(r, commands, 2)
					require.Equal(r, commands[1].ID, *run.BashCommandID)
					return
				}
				require.Equal(r, models.RunFailed, run.Status)
				require.Equal(r, c.want, *run.ErrorDetail)
				require.Equal(r, c.disabled, !a.Enabled())
				require.Nil(r, run.StartingAt)
				if c.disabled {
					require.Equal(r, c.want, *a.DisabledReason)
					require.JSONEq(r, `{"status_detail":`+string(run.StatusDetail)+`}`, string(a.DisabledDetail))
					require.Equal(r, "TarballNotFoundError", r.detail(run).Code)
				}
				r.fake.Watch(nil)
				r.settle()
				require.Empty(r, r.fake.Alive())
			})
		})
	}
}

// Fault 18 of the Python service: another organization's upload.
func TestDispatch_ForeignUploadIsNotSent(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		theirs := &models.Upload{OrgID: uuid.New(), UserID: uuid.New(), Name: "secret", Status: models.UploadCompleted, BlobKey: "uploads/secret.tar"}
		require.NoError(r, r.store.CreateUpload(r.Context(), theirs))
		r.blobs.data["uploads/secret.tar"] = []byte("secret")
		r.auto = r.automation(func(a *models.Automation) { a.TarballPath = internalUpload + theirs.ID.String() })
		run := r.pending()
		r.execute()
		require.Equal(r, models.RunFailed, r.run(run.ID).Status)
		require.NotContains(r, r.agent(*r.run(run.ID).BoxID).Requests(), "POST /api/file/upload")
	})
}

// Fault 20 of the Python service: an upload that fails is not ignored.
func TestDispatch_FailedUploadFailsTheRun(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		run := r.pending()
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Inspect" {
				r.agent(c.Workspace).Fail("/api/file/upload", 500)
			}
		})
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunFailed, run.Status)
		require.Contains(r, *run.ErrorDetail, "Failed to upload the tarball")
		require.Empty(r, r.agent(*run.BoxID).Commands())
	})
}
