package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// What a machine should have at least.
const (
	fewFiles  = 4096       // descriptors: a warning below
	littleMiB = 1024       // free disk: a warning below
	noMiB     = 100        // free disk: a failure below
	mebibyte  = 1 << 20    // bytes
	others    = 0o077      // permission bits of everybody but the owner
	nfsMagic  = 0x6969     // file systems of networks, from statfs(2)
	smbMagic  = 0x517B     //
	smb2Magic = 0xFE534D42 //
	cifsMagic = 0xFF534D42 //
)

// limits is how many files this user may open: every box, request and connection takes some.
func (d *doctor) limits(context.Context) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		d.warn("limits", err.Error(), "")
	} else if limit.Cur < fewFiles {
		d.warn("limits", fmt.Sprintf("at most %d open files", limit.Cur), fmt.Sprintf("raise it to %d or more: ulimit -n, LimitNOFILE=", fewFiles))
	} else {
		d.ok("limits", "%d open files", limit.Cur)
	}
}

// dataFolder is who may read and write what the service keeps.
func (d *doctor) dataFolder(context.Context) {
	const name = "data folder"
	dir := d.config.Storage.DataDir
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.warn(name, dir+" is not there yet", "nothing to do: serve makes it")
		return
	case err != nil:
		d.fail(name, err.Error(), "let the service's user read it, or set AUTOMATION_DATA_DIR")
		return
	case !info.IsDir():
		d.fail(name, dir+" is no folder", "remove it, or set AUTOMATION_DATA_DIR")
		return
	case unix.Access(dir, unix.W_OK|unix.X_OK) != nil:
		d.fail(name, dir+" cannot be written to by this user", "run as the user of the service, or give it the folder")
		return
	}
	if open := tooOpen(dir); len(open) > 0 {
		d.fail(name, "others can read "+strings.Join(open, ", "), "chmod go= "+strings.Join(open, " "))
		return
	}
	d.ok(name, "%s, for its owner alone", dir)
}

// tooOpen lists what others could read although it holds secrets.
func tooOpen(dir string) []string {
	var open []string
	for _, path := range []string{dir, filepath.Join(dir, secretKeyFile), filepath.Join(dir, apiKeyFile)} {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&others != 0 {
			open = append(open, path)
		}
	}
	return open
}

// nearest is the folder itself, or the nearest one above that exists.
func nearest(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// disk is the room where the service keeps its files, and whether SQLite can live there.
func (d *doctor) disk(context.Context) {
	folders := []string{d.config.Storage.DataDir}
	if path := d.config.Database.SQLitePath(); path != "" && filepath.Dir(path) != folders[0] {
		folders = append(folders, filepath.Dir(path))
	}
	for _, dir := range folders {
		var st unix.Statfs_t
		if err := unix.Statfs(nearest(dir), &st); err != nil {
			d.warn("disk", err.Error(), "")
			continue
		}
		free := st.Bavail * uint64(st.Bsize) / mebibyte
		found := fmt.Sprintf("%d MiB free at %s", free, dir)
		switch kind := uint32(st.Type); {
		case d.config.Database.SQLitePath() != "" && (kind == nfsMagic || kind == smbMagic || kind == smb2Magic || kind == cifsMagic):
			d.fail("disk", dir+" is on a network file system, where SQLite's locks do not hold", "use a local disk, or PostgreSQL")
		case free < noMiB:
			d.fail("disk", found, "make room: a full disk stops every write")
		case free < littleMiB:
			d.warn("disk", found, "make room, or lower AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS")
		default:
			d.ok("disk", "%s", found)
		}
	}
}

// bucket is whether blobs can be kept where they are to be, when that is no folder.
func (d *doctor) bucket(ctx context.Context) {
	where := d.config.Storage
	if !where.InBucket() {
		return
	}
	where.CreateBucket = false // a look makes nothing
	store, err := openStore(ctx, where)
	if err != nil {
		d.fail("bucket", err.Error(), "check AWS_S3_BUCKET, AWS_S3_ENDPOINT, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
		return
	}
	d.ok("bucket", "%s at %s may be used", where.Bucket, where.Endpoint)
	if err := store.Close(); err != nil {
		d.warn("bucket", err.Error(), "")
	}
}

// owner is the process that serves the SQLite file, if one does.
func (d *doctor) owner(context.Context) {
	path := d.config.Database.SQLitePath()
	if path == "" {
		return
	}
	file := path + ".owner.lock"
	if _, err := os.Stat(file); err != nil {
		d.ok("owner", "nobody has served %s yet", path)
		return
	}
	lock := flock.New(file, flock.SetFlag(os.O_RDONLY))
	free, err := lock.TryRLock()
	if err != nil {
		d.warn("owner", err.Error(), "run as the user of the service")
		return
	}
	if free {
		d.ok("owner", "nobody serves %s now", path)
		if err := lock.Unlock(); err != nil {
			d.warn("owner", err.Error(), "")
		}
		return
	}
	pid, err := os.ReadFile(file)
	if err != nil {
		d.warn("owner", err.Error(), "run as the user of the service")
		return
	}
	d.ok("owner", "process %s serves %s", strings.TrimSpace(string(pid)), path)
}

// secrets is whether the keys of boxes that are stored can be opened.
func (d *doctor) secrets(ctx context.Context) {
	const name, newest = "secrets", 1000
	if d.store == nil {
		return
	}
	stored, sealed, err := d.store.CheckKeys(ctx, newest)
	switch {
	case err != nil:
		d.fail(name, err.Error(), "see the checks of database and schema")
	case sealed > 0:
		d.fail(name, fmt.Sprintf("%d of %d stored keys of boxes cannot be opened", sealed, stored),
			"add the key that sealed them to AUTOMATION_SECRET_KEY (the first seals, all open), or restore "+
				filepath.Join(d.config.Storage.DataDir, secretKeyFile))
	default:
		d.ok(name, "%d stored keys of boxes, all can be opened", stored)
	}
}

// sealingKeys are the keys that serve would use; unlike serve, doctor makes none.
func (d *doctor) sealingKeys() ([][]byte, error) {
	keys, err := d.config.SealingKeys()
	if err != nil || len(keys) > 0 {
		return keys, err
	}
	text, err := readKey(filepath.Join(d.config.Storage.DataDir, secretKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	key, err := parseKey(d.config.Storage.DataDir, text)
	return [][]byte{key}, err
}
