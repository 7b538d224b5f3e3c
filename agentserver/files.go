package agentserver

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// refusal is an error of the file routes, with the status and in the words of the contract.
type refusal struct {
	status int
	text   string
}

// Error is the text that the client gets.
func (r *refusal) Error() string { return r.text }

var (
	errRelative    = &refusal{http.StatusBadRequest, "Path must be absolute"}
	errNotFile     = &refusal{http.StatusBadRequest, "Path is not a file"}
	errIsDir       = &refusal{http.StatusBadRequest, "Path is a directory"}
	errNotDir      = &refusal{http.StatusBadRequest, "Path is not a directory"}
	errParent      = &refusal{http.StatusBadRequest, "A parent of the path is not a directory"}
	errNotFound    = &refusal{http.StatusNotFound, "File not found"}
	errNoDirectory = &refusal{http.StatusNotFound, "Directory not found"}
	errPermission  = &refusal{http.StatusForbidden, "Permission denied"}
	errOutside     = &refusal{http.StatusUnprocessableEntity, "path must be inside the files root"} // as for a conversation's workspace
)

// files opens paths of the box. With a root it reaches what lies beneath it only, by the handle of that directory: neither
// "..", nor a link, nor one that is swapped in meanwhile leads out. Without, every absolute path is served, as the contract
// has it.
type files struct {
	rootPath string   // "" without a root
	root     *os.Root // nil without a root
}

func openFiles(rootPath string) (*files, error) {
	if rootPath == "" {
		return &files{}, nil
	}
	root, err := os.OpenRoot(rootPath)
	if err != nil {
		return nil, fmt.Errorf("OH_FILES_ROOT: %w", err)
	}
	return &files{rootPath: rootPath, root: root}, nil
}

func (f *files) close() error {
	if f.root == nil {
		return nil
	}
	return f.root.Close()
}

// locate checks a path and returns what the methods of the handle, or of package os, take for it.
func (f *files) locate(name string) (string, error) {
	if !path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return "", errRelative
	}
	name = path.Clean(name)
	if f.root == nil {
		return name, nil
	}
	inside, err := filepath.Rel(f.rootPath, name)
	if err != nil || !filepath.IsLocal(inside) {
		return "", errOutside
	}
	return inside, nil
}

// explain turns an error of the file system into one of the contract, where there is one; absent is that for a path that
// does not exist.
func explain(err error, absent *refusal) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return absent
	case errors.Is(err, fs.ErrPermission):
		return errPermission
	case errors.Is(err, syscall.ENOTDIR):
		return errParent
	case errors.Is(err, syscall.ELOOP):
		return errOutside
	}
	var failed *fs.PathError
	if errors.As(err, &failed) && strings.Contains(failed.Err.Error(), "escapes") { // os.Root has no sentinel for it
		return errOutside
	}
	return err
}

// The methods below take what locate gave. Without a root any path of the box is asked for on purpose, by whoever has the
// session key.

// open opens an existing file to read; a pipe or device never blocks it.
func (f *files) open(name string) (*os.File, error) {
	const how = os.O_RDONLY | syscall.O_NONBLOCK
	if f.root != nil {
		return f.root.OpenFile(name, how, 0)
	}
	return os.OpenFile(name, how, 0)
}

func (f *files) stat(name string) (fs.FileInfo, error) {
	if f.root != nil {
		return f.root.Stat(name)
	}
	return os.Stat(name)
}

// directory is the absolute path, without links, of a directory that may be exported.
func (f *files) directory(name string) (string, error) {
	if _, err := f.locate(name); err != nil {
		return "", err
	}
	name, err := filepath.EvalSymlinks(path.Clean(name))
	if err != nil {
		return "", explain(err, errNoDirectory)
	}
	if _, err := f.locate(name); err != nil {
		return "", err
	}
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return "", errNoDirectory
	}
	return name, nil
}

// makeDirectory makes a directory with its parents; one that exists is left as it is.
func (f *files) makeDirectory(name string) error {
	if f.root != nil {
		return f.root.MkdirAll(name, 0o777)
	}
	return os.MkdirAll(name, 0o777)
}

// write stores content under a name, whole or not at all: it goes to a temporary name in the same directory first. A file
// that is there keeps its mode.
func (f *files) write(name string, content io.Reader) (size int64, err error) {
	mode := fs.FileMode(0o666)
	info, err := f.stat(name)
	switch {
	case err == nil && info.IsDir():
		return 0, errIsDir
	case err == nil && !info.Mode().IsRegular(): // a device is not to be replaced by a file
		return 0, errNotFile
	case err == nil:
		mode = info.Mode().Perm()
		if f.root == nil {
			if name, err = filepath.EvalSymlinks(name); err != nil { // what a link leads to is replaced, not the link
				return 0, err
			}
		}
	}
	if err := f.makeDirectory(filepath.Dir(name)); err != nil {
		return 0, explain(err, errParent)
	}
	temporary := filepath.Join(filepath.Dir(name), ".upload-"+randomName())
	size, err = f.create(temporary, mode, info != nil, content)
	if err == nil {
		err = f.rename(temporary, name)
	}
	if err != nil {
		return 0, errors.Join(err, f.remove(temporary))
	}
	return size, nil
}

// create writes a new file. exact: the mode is that of the file it replaces, whatever the umask.
func (f *files) create(name string, mode fs.FileMode, exact bool, content io.Reader) (size int64, err error) {
	const how = os.O_CREATE | os.O_EXCL | os.O_WRONLY
	var file *os.File
	if f.root != nil {
		file, err = f.root.OpenFile(name, how, mode)
	} else {
		file, err = os.OpenFile(name, how, mode)
	}
	if err != nil {
		return 0, explain(err, errParent)
	}
	size, err = io.Copy(file, content)
	if exact {
		err = errors.Join(err, file.Chmod(mode))
	}
	return size, errors.Join(err, file.Close())
}

func (f *files) rename(from, to string) error {
	if f.root != nil {
		return f.root.Rename(from, to)
	}
	return os.Rename(from, to)
}

// remove removes a temporary file, if it was made.
func (f *files) remove(name string) error {
	remove := os.Remove
	if f.root != nil {
		remove = f.root.Remove
	}
	if err := remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func randomName() string {
	var bytes [8]byte
	_, _ = rand.Read(bytes[:]) // never fails
	return hex.EncodeToString(bytes[:])
}
