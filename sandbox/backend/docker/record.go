package docker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"automation/sandbox"
	"automation/sandbox/backend/filetree"
)

// A box is a record, a directory of files, and a container made from them. The record is written first and removed last; a
// container that somebody removed is made anew from it, on the same files.

// record says what a box is made of.
type record struct {
	WorkspaceID  uuid.UUID `json:"workspace_id"`
	Deployment   uuid.UUID `json:"deployment"`
	Conversation uuid.UUID `json:"conversation,omitzero"`
	Workspace    string    `json:"workspace,omitempty"` // a caller's own directory; "": one of the box
	User         string    `json:"user"`                // uid:gid
	SessionKey   string    `json:"session_key"`
	SecretKey    string    `json:"secret_key"`
	CreatedAt    time.Time `json:"created_at"`
	Deleting     bool      `json:"deleting,omitempty"` // its files are being removed
}

// The directories of a box, and where its container sees them. The container's own disk keeps what is written elsewhere in it,
// until the container is removed.
var places = []struct{ name, target string }{
	{"home", homeDir},
	{"workspace", workspaceDir},
	{"conversations", conversationsDir},
	{"tmp", "/tmp"},
}

// Where a container sees its files.
const (
	homeDir          = "/box/home"
	workspaceDir     = "/box/workspace"
	conversationsDir = "/box/conversations"
)

const (
	recordSuffix = ".json"
	readySuffix  = ".ready" // holds the start of the container whose agent server has answered once
	engineFile   = "engine" // the id of the engine that was served last
	draftPrefix  = ".draft-"
	draftsAge    = time.Hour // of what a killed service has left
)

func (b *Backend) recordPath(id uuid.UUID) string {
	return filepath.Join(b.dir, id.String()+recordSuffix)
}
func (b *Backend) filesPath(id uuid.UUID) string { return filepath.Join(b.dir, id.String()) }

// record reads the record of a box; sandbox.ErrGone where there is none.
func (b *Backend) record(id uuid.UUID) (record, error) {
	var r record
	text, err := os.ReadFile(b.recordPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return r, sandbox.ErrGone
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read the record of box %s: %w", id, err)
	}
	return r, nil
}

// newRecord is the record of a box that spec asks for.
func (b *Backend) newRecord(spec sandbox.Spec) (record, error) {
	r := record{
		WorkspaceID: spec.Label.WorkspaceID, Deployment: spec.Label.Deployment, Conversation: spec.Conversation,
		SessionKey: spec.SessionKey, SecretKey: spec.SecretKey, CreatedAt: b.now().UTC(), User: b.user,
	}
	if r.SessionKey == "" {
		r.SessionKey = rand.Text()
	}
	if r.SecretKey == "" {
		r.SecretKey = rand.Text()
	}
	if spec.Workspace == "" {
		return r, nil
	}
	var err error
	r.Workspace, r.User, err = b.checkout(spec.Workspace)
	return r, err
}

// Workspace checks a caller's own directory and returns its real path; sandbox.ErrInvalid says why it cannot be used.
func (b *Backend) Workspace(path string) (string, error) {
	dir, _, err := b.checkout(path)
	return dir, err
}

// checkout resolves a caller's own directory, which has to lie below one of those allowed, and says as whom it is entered.
func (b *Backend) checkout(path string) (dir, user string, err error) {
	if !filepath.IsAbs(path) {
		return "", "", fmt.Errorf("%w: workspace %q is not absolute", sandbox.ErrInvalid, path)
	}
	if dir, err = filepath.EvalSymlinks(path); err != nil {
		return "", "", fmt.Errorf("%w: workspace %q cannot be read", sandbox.ErrInvalid, path)
	}
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return "", "", fmt.Errorf("%w: workspace %q is no directory", sandbox.ErrInvalid, path)
	}
	for _, root := range b.config.Workspaces {
		allowed, err := filepath.EvalSymlinks(root)
		if err == nil && strings.HasPrefix(dir, allowed+"/") && !strings.ContainsAny(dir, ":,") {
			return dir, b.userOf(info), nil
		}
	}
	return "", "", fmt.Errorf("%w: workspace %q is not below a directory of AUTOMATION_DOCKER_WORKSPACES", sandbox.ErrInvalid, path)
}

// keep writes the record of a new box, whole or not at all, and returns the one that counts: that of the first writer.
func (b *Backend) keep(r record) (kept record, made bool, err error) {
	draft, err := b.draft(r)
	if err != nil {
		return r, false, err
	}
	defer os.Remove(draft)
	err = os.Link(draft, b.recordPath(r.WorkspaceID))
	if errors.Is(err, fs.ErrExist) {
		old, err := b.record(r.WorkspaceID)
		switch {
		case err != nil:
			return r, false, err
		case old.Deployment != r.Deployment:
			return r, false, fmt.Errorf("%w: box %s belongs to another deployment", sandbox.ErrInvalid, r.WorkspaceID)
		case old.Deleting:
			return r, false, fmt.Errorf("box %s: %w", r.WorkspaceID, sandbox.ErrBusy)
		}
		return old, false, nil
	}
	if err != nil {
		return r, false, classify("write the record of the box", err)
	}
	return r, true, b.sync()
}

// mark replaces the record of a box.
func (b *Backend) mark(r record) error {
	draft, err := b.draft(r)
	if err != nil {
		return err
	}
	if err := os.Rename(draft, b.recordPath(r.WorkspaceID)); err != nil {
		_ = os.Remove(draft)
		return fmt.Errorf("write the record of the box: %w", err)
	}
	return b.sync()
}

// draft writes a record under a name of no box.
func (b *Backend) draft(r record) (path string, err error) {
	text, err := json.Marshal(r) //nolint:gosec // the keys are kept here, for the service's user alone
	if err != nil {
		return "", fmt.Errorf("write the record of the box: %w", err)
	}
	f, err := os.CreateTemp(b.dir, draftPrefix)
	if err != nil {
		return "", classify("write the record of the box", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", classify("write the record of the box", err)
	}
	return f.Name(), nil
}

// sync makes names in the data folder last.
func (b *Backend) sync() error {
	d, err := os.Open(b.dir)
	if err != nil {
		return fmt.Errorf("sync the boxes: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync the boxes: %w", err)
	}
	return nil
}

// clearDrafts removes what services that were killed have left.
func (b *Backend) clearDrafts() {
	drafts, _ := filepath.Glob(filepath.Join(b.dir, draftPrefix+"*"))
	for _, draft := range drafts {
		if info, err := os.Lstat(draft); err == nil && time.Since(info.ModTime()) > draftsAge {
			_ = os.Remove(draft)
		}
	}
}

// layOut makes the directories of a box where they are missing, and gives them to its user.
func (b *Backend) layOut(r record) error {
	uid, gid, err := parseUser(r.User)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.filesPath(r.WorkspaceID), 0o700); err != nil {
		return classify("make the directories of the box", err)
	}
	for _, p := range places {
		dir := filepath.Join(b.filesPath(r.WorkspaceID), p.name)
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil && os.Getuid() == 0 {
			err = os.Lchown(dir, uid, gid)
		}
		if err != nil {
			return classify("make the directories of the box", err)
		}
	}
	return nil
}

// discard removes the files of a box and then its record. Nothing of it may run.
func (b *Backend) discard(ctx context.Context, id uuid.UUID) error {
	for _, name := range []string{id.String(), id.String() + readySuffix, id.String() + recordSuffix} {
		if err := filetree.Remove(ctx, b.dir, name); err != nil {
			return err
		}
	}
	return nil
}

// isReady reports whether the agent server has answered in the start of the container that began at started.
func (b *Backend) isReady(id uuid.UUID, started string) bool {
	text, err := os.ReadFile(b.filesPath(id) + readySuffix)
	return err == nil && started != "" && string(text) == started
}

// nowReady remembers it. Without it the next look asks the box again.
func (b *Backend) nowReady(id uuid.UUID, started string) {
	_ = os.WriteFile(b.filesPath(id)+readySuffix, []byte(started), 0o600)
}

// parseUser reads "uid:gid".
func parseUser(text string) (uid, gid int, err error) {
	first, second, ok := strings.Cut(text, ":")
	uid, uidErr := strconv.Atoi(first)
	gid, gidErr := strconv.Atoi(second)
	if !ok || uidErr != nil || gidErr != nil || uid < 0 || gid < 0 {
		return 0, 0, fmt.Errorf("AUTOMATION_DOCKER_USER=%q: want uid:gid in numbers", text)
	}
	return uid, gid, nil
}
