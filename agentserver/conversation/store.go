// Package conversation reads the histories of conversations as the Python agent server lays them out, one directory each
// (meta.json, base_state.json, events), and keeps beside them what is ours. Two servers may work on the same directories:
// everything is read anew, and written under another name first.
package conversation

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// fileLimit bounds what is read of one file.
const fileLimit = 16 << 20

// Store is the directory of all histories. The zero Path means that there is none.
type Store struct{ path string }

// Open returns the store at path, which need not exist yet; "" is a store that is always empty.
func Open(path string) *Store { return &Store{path} }

// Path is the directory.
func (s *Store) Path() string { return s.path }

// IsID reports whether name is a conversation's id as it stands on disk: 32 lower-case hexadecimal digits.
func IsID(name string) bool {
	return len(name) == 32 && strings.Trim(name, "0123456789abcdef") == ""
}

// Dashed is an id in the form of the API.
func Dashed(id string) string {
	if !IsID(id) {
		return id
	}
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
}

// Plain is an id in the form of the disk.
func Plain(id string) string { return strings.ToLower(strings.ReplaceAll(id, "-", "")) }

// IDs lists the conversations, in order. A directory that is a link is none.
func (s *Store) IDs() ([]string, error) {
	if s.path == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("conversations: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if entry.IsDir() && IsID(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	return ids, nil
}

// within opens the directory of one conversation, which is a direct child and no link. fs.ErrNotExist: there is none.
func (s *Store) within(id string) (*os.Root, error) {
	if s.path == "" || !IsID(id) {
		return nil, fs.ErrNotExist
	}
	dir := filepath.Join(s.path, id)
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fs.ErrNotExist
	}
	return os.OpenRoot(dir)
}

// Directory opens the directory of a conversation, whatever is in it. fs.ErrNotExist: there is none. The caller closes it.
func (s *Store) Directory(id string) (*os.Root, error) { return s.within(Plain(id)) }

// read returns one regular file of a conversation. An agent may own the directory, so nothing in it is waited for and no
// link is followed.
func (s *Store) read(id, name string) ([]byte, error) {
	root, err := s.within(id)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > fileLimit {
		return nil, fmt.Errorf("%s is no file of ordinary size", name)
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, fileLimit))
}

// write puts one file into a conversation, whole or not at all.
func (s *Store) write(id, name string, text []byte) error {
	root, err := s.within(id)
	if err != nil {
		return err
	}
	defer root.Close()
	temporary := "." + name + "." + strings.ToLower(rand.Text()) + ".tmp"
	file, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temporary))
	}
	return nil
}

// Create makes the directory of a conversation with its first files. fs.ErrExist: there is one.
func (s *Store) Create(id string, meta, state []byte) error {
	if s.path == "" || !IsID(id) {
		return fmt.Errorf("conversation %s: no place for histories is configured", id)
	}
	dir := filepath.Join(s.path, id)
	if err := errors.Join(os.MkdirAll(s.path, 0o700), os.Mkdir(dir, 0o700)); err != nil {
		return fmt.Errorf("conversation: %w", err)
	}
	err := errors.Join(os.Mkdir(filepath.Join(dir, "events"), 0o700), s.write(id, metaFile, meta), s.write(id, stateFile, state))
	if err != nil {
		return fmt.Errorf("conversation: %w", errors.Join(err, s.Remove(id)))
	}
	return nil
}

// Remove deletes the history of a conversation; one that is not there is no error.
func (s *Store) Remove(id string) error {
	if s.path == "" || !IsID(id) {
		return nil
	}
	root, err := os.OpenRoot(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove conversation: %w", err)
	}
	defer root.Close()
	if err := root.RemoveAll(id); err != nil {
		return fmt.Errorf("remove conversation: %w", err)
	}
	return nil
}

// NewID is the id of a new conversation.
func NewID() string {
	var bytes [16]byte
	_, _ = rand.Read(bytes[:]) // never fails
	bytes[6], bytes[8] = bytes[6]&0x0f|0x40, bytes[8]&0x3f|0x80
	return hex.EncodeToString(bytes[:])
}
