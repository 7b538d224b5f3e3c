package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
)

// internalUpload starts the path of a tarball that was uploaded to us.
const internalUpload = "oh-internal://uploads/"

// Exit codes of curl that the contract tells apart.
const (
	curlHTTPError    = 22
	curlTooBig       = 63
	downloadOverhead = 30 * time.Second // what curl's shell may take beyond curl's own limit
)

var clientError = regexp.MustCompile(`returned error: 4\d\d`)

// fetchTarball puts the automation's tarball into the box: an upload of ours is sent from the blob store, an http(s) one is
// fetched by the box itself, so that it never passes through us.
func (d *Dispatch) fetchTarball(ctx context.Context, x *execution) error {
	path := x.Automation.TarballPath
	if id, ok := strings.CutPrefix(path, internalUpload); ok {
		return d.sendUpload(ctx, x, id)
	}
	u, err := url.Parse(path)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		text := fmt.Sprintf("Unsupported tarball_path: '%s'", path)
		return executionFailure(text, nil)
	}
	return d.download(ctx, x, path, u.Redacted())
}

// sendUpload sends an upload of the automation's own organization.
func (d *Dispatch) sendUpload(ctx context.Context, x *execution, id string) error {
	missing := tarballGone("Tarball upload not found: " + id)
	uploadID, err := uuid.Parse(id)
	if err != nil {
		return missing
	}
	upload, err := d.Store.Upload(ctx, x.Automation.OrgID, uploadID)
	switch {
	case errors.Is(err, models.ErrNotFound):
		return missing
	case err != nil:
		return fmt.Errorf("read upload %s: %w", uploadID, err)
	case upload.DeletedAt != nil || upload.Status != models.UploadCompleted:
		return missing
	}
	body, err := d.Blobs.Open(ctx, upload.BlobKey)
	if errors.Is(err, fs.ErrNotExist) {
		return missing
	}
	if err != nil {
		return executionFailure("Failed to read the uploaded tarball", err)
	}
	defer body.Close()
	if err := x.agent.Upload(ctx, x.work.tarball, body); err != nil {
		return d.agentFailure(ctx, "Failed to upload the tarball", err)
	}
	return nil
}

// download lets the box fetch the tarball. shown is its address without a password.
func (d *Dispatch) download(ctx context.Context, x *execution, address, shown string) error {
	line := downloadCommand(x.work, address, d.Settings.DownloadMaxBytes, d.Settings.DownloadTimeout)
	limit := d.Settings.DownloadTimeout + downloadOverhead
	id, err := x.agent.StartCommand(ctx, line, limit)
	if err != nil {
		return d.agentFailure(ctx, "Failed to download tarball (exit=-1)", err)
	}
	out, err := awaitExit(ctx, x.agent, id, limit)
	if err != nil {
		return d.agentFailure(ctx, "Failed to download tarball (exit=-1)", err)
	}
	stderr := strings.TrimSpace(out.Stderr)
	switch code := *out.ExitCode; {
	case code == 0:
		return nil
	case code == curlTooBig:
		return executionFailure(fmt.Sprintf("Tarball exceeds size limit (%d MB)", d.Settings.DownloadMaxBytes>>20), nil)
	case code == curlHTTPError && clientError.MatchString(stderr):
		return tarballGone(fmt.Sprintf("External tarball URL is not accessible: %s. HTTP error: %s", shown, stderr))
	default:
		return executionFailure(fmt.Sprintf("Failed to download tarball (exit=%d): %s", code, stderr), nil)
	}
}

// awaitExit waits until a command has ended. The box ends it after limit; a little later we stop waiting.
func awaitExit(ctx context.Context, agent sandbox.Agent, id string, limit time.Duration) (sandbox.CommandOutput, error) {
	bounded, cancel := context.WithTimeout(ctx, limit+downloadOverhead)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(wait*2, time.Second) {
		out, err := agent.LastOutput(bounded, id)
		if err != nil || out.ExitCode != nil {
			return out, err
		}
		if err := pause(bounded, wait); err != nil {
			return out, fmt.Errorf("wait for command %s: %w", id, err)
		}
	}
}
