package storage

import (
	"bytes"
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// listings are the buffers that directories are read into.
var listings = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// list tells of every name in an open directory but "." and "..", with its kind as the directory has it (unix.DT_REG and so
// on; unix.DT_UNKNOWN where the file system keeps none there). It reads on from where the directory stands.
func list(fd int, each func(name string, kind byte)) error {
	buffer := listings.Get().(*[32 << 10]byte)
	defer listings.Put(buffer)
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(fd, buffer[:]) })
		if n <= 0 {
			return err
		}
		// struct linux_dirent64: inode and offset of 8 bytes each, the record's length of 2, the kind, the name with a NUL.
		for rest := buffer[:n]; len(rest) > 19; {
			record := rest[:binary.NativeEndian.Uint16(rest[16:])]
			name, _, _ := bytes.Cut(record[19:], []byte{0})
			if text := string(name); text != "." && text != ".." {
				each(text, record[18])
			}
			rest = rest[len(record):]
		}
	}
}

// kindOf is what a name in an open directory is, where its listing did not say.
func kindOf(fd int, name string, kind byte) byte {
	if kind != unix.DT_UNKNOWN {
		return kind
	}
	var st unix.Stat_t
	if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return unix.DT_UNKNOWN
	}
	return byte(st.Mode >> 12 & 0xf) // DT_… are the file types of stat
}
