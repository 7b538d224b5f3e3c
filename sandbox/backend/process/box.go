package process

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/backend/filetree"
)

// Names in a box's control directory.
const (
	recordFile = "box.json"   // what the box is; written before the directory gets its name, removed last
	keyFile    = "key"        // session key of the agent server
	lockFile   = "lock"       // held by whoever changes the box
	startFile  = "start.json" // facts of the last start
	portFile   = "port"       // written by the agent server once it listens
	readyFile  = "ready"      // the agent server of this start has answered once
	heldFile   = "held"       // which of "suspend" and "resume" a stopped tree was last told
	logFile    = "log"        // output of supervisor and agent server
)

// box is the directory of one box. Its name, the workspace id, is its identity.
type box struct {
	id  uuid.UUID
	dir string
}

// record says what a box is and whose.
type record struct {
	WorkspaceID uuid.UUID `json:"workspace_id"`
	Deployment  uuid.UUID `json:"deployment"`
	CreatedAt   time.Time `json:"created_at"`
}

func (x box) control(name string) string { return filepath.Join(x.dir, "control", name) }
func (x box) home() string               { return filepath.Join(x.dir, "home") }
func (x box) tmp() string                { return filepath.Join(x.dir, "tmp") }

// there is nil where the directory is, and ErrGone only where it is not; whatever else goes wrong is not "gone".
func (x box) there() error {
	info, err := os.Lstat(x.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sandbox.ErrGone
	case err != nil:
		return fmt.Errorf("look at box: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", x.dir)
	}
	return nil
}

// make lays the directory out under another name and then gives it its own, so that a box never exists without its record
// and key. One that exists already is kept if it is the deployment's. ErrGone when the box is deleted meanwhile.
func (x box) make(deployment uuid.UUID, now time.Time) (made bool, err error) {
	dir := filepath.Dir(x.dir)
	staging, err := os.MkdirTemp(dir, stagingPrefix+x.id.String()+"-")
	if err != nil {
		return false, fmt.Errorf("make box: %w: %w", sandbox.ErrNotMade, err)
	}
	stage := box{id: x.id, dir: staging}
	unlock, err := stage.take() // says that somebody is at it; what a killed Create left is locked by nobody
	if err != nil || unlock == nil {
		return false, errors.Join(fmt.Errorf("make box: %w", sandbox.ErrGone), err)
	}
	defer unlock()
	if err := stage.fill(record{WorkspaceID: x.id, Deployment: deployment, CreatedAt: now.UTC()}); err != nil {
		return false, errors.Join(fmt.Errorf("make box: %w: %w", sandbox.ErrNotMade, err), stage.setAside(context.Background()))
	}
	if err = os.Rename(staging, x.dir); err == nil {
		return true, syncDir(dir)
	}
	r, readErr := x.record()
	if err := stage.setAside(context.Background()); err != nil { // a few files
		return false, err
	}
	switch {
	case readErr == nil && r.Deployment == deployment:
		return false, nil
	case readErr == nil:
		return false, fmt.Errorf("%w: box %s belongs to another deployment", sandbox.ErrInvalid, x.id)
	case errors.Is(err, fs.ErrNotExist) || errors.Is(readErr, fs.ErrNotExist): // a Delete was faster
		return false, fmt.Errorf("make box: %w", sandbox.ErrGone)
	}
	return false, fmt.Errorf("make box: %w", err)
}

// fill makes what every box has.
func (x box) fill(r record) error {
	for _, dir := range []string{x.home(), x.tmp()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := x.ensureKey(); err != nil {
		return err
	}
	return writeFile(x.control(recordFile), text)
}

// ensureKey gives the box a session key of its own, once.
func (x box) ensureKey() error {
	if x.has(keyFile) {
		return nil
	}
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return writeFile(x.control(keyFile), []byte(hex.EncodeToString(key[:])))
}

// record reads what the box is.
func (x box) record() (record, error) {
	text, err := os.ReadFile(x.control(recordFile))
	if err != nil {
		return record{}, fmt.Errorf("read box record: %w", err)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("read box record: %w", err)
	}
	return r, nil
}

// identity is the box's only one. URL is "" until its agent server has said where it listens; a key that cannot be read is "".
func (x box) identity() sandbox.Identity {
	key, _ := os.ReadFile(x.control(keyFile))
	i := sandbox.Identity{Kind: models.IdentityBox, ProviderID: x.id.String(), Key: string(key)}
	if port, ok := x.port(); ok {
		i.URL = "http://127.0.0.1:" + port
	}
	return i
}

// has reports whether a control file exists.
func (x box) has(name string) bool { return pathExists(x.control(name)) }

// lock takes the box for a change; the returned function gives it back. ErrGone when there is no directory, also when it
// was removed while we waited.
func (x box) lock(ctx context.Context) (unlock func(), err error) {
	err = until(ctx, func() (bool, error) {
		var err error
		unlock, err = x.take()
		return unlock != nil, err
	})
	if err != nil && !errors.Is(err, sandbox.ErrGone) {
		err = fmt.Errorf("lock box: %w", err)
	}
	return unlock, err
}

// take tries to lock once; without an error, no function means that somebody else holds the box.
func (x box) take() (unlock func(), err error) {
	if err := x.there(); err != nil {
		return nil, err
	}
	// A box can remove its own control directory; without one there is nothing to lock.
	if err := os.Mkdir(x.control(""), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, ignore(err, fs.ErrNotExist)
	}
	l := flock.New(x.control(lockFile), flock.SetPermissions(0o600))
	held, err := l.TryLock()
	if err != nil || !held || !sameFile(l, x.control(lockFile)) { // the lock of a removed box locks nothing
		return nil, errors.Join(ignore(err, fs.ErrNotExist), l.Close())
	}
	return func() { _ = l.Close() }, nil
}

// sameFile reports whether the locked file is still the one at path.
func sameFile(l *flock.Flock, path string) bool {
	held, err := l.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(held, there)
}

// writeFile replaces path as a whole: written beside it, synced, renamed, and the directory synced.
func writeFile(path string, text []byte) error {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(dir)
	} else {
		_ = os.Remove(f.Name())
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// A directory that is not a box yet, or no longer one, has the box's id between one of these and something random.
const (
	stagingPrefix = ".new-"
	asidePrefix   = ".gone-"
)

// setAside ends a directory as a box, then removes it: nobody finds it, or waits for its lock, any more, while removing it
// can take long and be cut short.
func (x box) setAside(ctx context.Context) error {
	dir, name := filepath.Dir(x.dir), asidePrefix+x.id.String()+"-"+rand.Text()
	if err := os.Rename(x.dir, filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("set box aside: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	return filetree.Remove(ctx, dir, name, "control", recordFile)
}

// remains returns the directories beside the box's that a Create or Delete of it has not finished with.
func (x box) remains() ([]box, error) {
	entries, err := os.ReadDir(filepath.Dir(x.dir))
	if err != nil {
		return nil, fmt.Errorf("list boxes: %w", err)
	}
	var found []box
	for _, e := range entries {
		for _, prefix := range []string{stagingPrefix, asidePrefix} {
			if strings.HasPrefix(e.Name(), prefix+x.id.String()+"-") {
				found = append(found, box{id: x.id, dir: filepath.Join(filepath.Dir(x.dir), e.Name())})
			}
		}
	}
	return found, nil
}

// discard removes a directory of remains, but for one that a living Create is at.
func (x box) discard(ctx context.Context) error {
	dir, name := filepath.Split(x.dir)
	if !strings.HasPrefix(name, stagingPrefix) {
		return filetree.Remove(ctx, dir, name, "control", recordFile)
	}
	unlock, err := x.take()
	if err != nil || unlock == nil {
		return ignore(err, sandbox.ErrGone)
	}
	defer unlock()
	return x.setAside(ctx)
}

// clearStaging removes what a Create that was killed has left before its box had a name: no row will ever ask for it. What
// cannot be removed is left for the next start.
func (b *Backend) clearStaging(ctx context.Context, log *slog.Logger) {
	left, err := filepath.Glob(filepath.Join(b.dir, stagingPrefix+"*"))
	for _, dir := range left {
		name := strings.TrimPrefix(filepath.Base(dir), stagingPrefix)
		if id, parseErr := uuid.Parse(name[:min(len(name), len(uuid.Nil.String()))]); parseErr == nil {
			err = errors.Join(err, box{id: id, dir: dir}.discard(ctx))
		}
	}
	if err != nil {
		log.Warn("half-made boxes are left", "error", err)
	}
}

// boxNamed returns the box that a directory's name stands for; aside when its deletion has begun.
func boxNamed(dir, name string) (x box, aside, ok bool) {
	text, aside := strings.CutPrefix(name, asidePrefix)
	if length := len(uuid.Nil.String()); aside && len(text) > length {
		text = text[:length]
	}
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return box{}, false, false
	}
	return box{id: id, dir: filepath.Join(dir, name)}, aside, true
}
