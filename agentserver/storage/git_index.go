package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// format is how a repository names its objects.
type format string

const (
	formatSHA1   format = "sha1"
	formatSHA256 format = "sha256"
)

// emptyConfigs are the configurations of repositories of each format.
var emptyConfigs = map[format]string{
	formatSHA1:   "[core]\n\trepositoryformatversion = 0\n",
	formatSHA256: "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n",
}

// indexSignature is how every index begins: four letters, as a number.
const indexSignature = 0x44495243

var errOddIndex = errors.New("no index of a known format")

// indexOf finds the index of a checkout, whose .git is a directory or a file that names one.
func indexOf(checkout handle, path string) (string, error) {
	st, err := checkout.stat(".git")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(path, ".git")
	if isFile(st) {
		text, err := checkout.readFile(".git", 4096)
		if err != nil {
			return "", err
		}
		target, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: ")
		if !ok {
			return "", fmt.Errorf("%s names no repository", dir)
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(path, target)
		}
		dir = target
	} else if !isDir(st) {
		return "", fmt.Errorf("%s is no repository", dir)
	}
	index := filepath.Join(dir, "index")
	var found unix.Stat_t
	if err := unix.Lstat(index, &found); err != nil {
		return "", err
	}
	if !isFile(found) {
		return "", fmt.Errorf("%s is no file", index)
	}
	return index, nil
}

// formatOf tells of which format a repository is from its index, which does not say so: read in the wrong one, git would take
// tracked files for others. The checkout's configuration is not asked, since an agent can write it. errOddIndex: neither fits,
// or both do.
func formatOf(index string) (format, error) {
	file, err := os.OpenFile(index, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("index: %w", err)
	}
	defer file.Close()
	head := make([]byte, 8192)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", fmt.Errorf("index: %w", err)
	}
	head = head[:n]
	if len(head) < 12 || binary.BigEndian.Uint32(head) != indexSignature {
		return "", errOddIndex
	}
	version, entries := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	short, long := firstFits(head[12:], version, 20), firstFits(head[12:], version, 32)
	switch {
	case entries == 0, short && !long:
		return formatSHA1, nil
	case long && !short:
		return formatSHA256, nil
	}
	return "", errOddIndex
}

// firstFits reports whether the name of the first file ends where its own length says, if object names are so many bytes long:
// before it stand ten numbers of four bytes, the object name, the flags with the length, and in newer versions more.
func firstFits(entry []byte, version uint32, object int) bool {
	at := 40 + object
	if len(entry) < at+5 {
		return false
	}
	flags := binary.BigEndian.Uint16(entry[at:])
	at += 2
	if version >= 3 && flags&0x4000 != 0 {
		at += 2
	}
	if version == 4 {
		at++ // how much of the name before it is left out: nothing
	}
	length := int(flags & 0xfff) // the most stands for everything longer
	return at+length < len(entry) && length > 0 && bytes.IndexByte(entry[at:at+length], 0) < 0 &&
		(length == 0xfff || entry[at+length] == 0)
}
