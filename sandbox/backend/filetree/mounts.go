package filetree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Mount is a line of /proc/self/mountinfo.
type Mount struct {
	Root  string // what of the file system is mounted
	Point string // where
	Type  string // of the file system
}

// Mounts returns what is mounted in this process's view.
func Mounts() ([]Mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return Parse(string(text)), nil
}

// Parse reads lines such as "38 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"; the number of fields before
// the dash varies.
func Parse(text string) []Mount {
	var mounts []Mount
	for line := range strings.Lines(text) {
		head, tail, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 5 || len(kind) < 1 {
			continue
		}
		mounts = append(mounts, Mount{Root: unescape(fields[3]), Point: unescape(fields[4]), Type: kind[0]})
	}
	return mounts
}

// unescape undoes the octal escapes of blanks and backslashes (\040).
func unescape(s string) string {
	var out strings.Builder
	for len(s) > 0 {
		if s[0] == '\\' && len(s) >= 4 {
			if c, err := strconv.ParseUint(s[1:4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				s = s[4:]
				continue
			}
		}
		out.WriteByte(s[0])
		s = s[1:]
	}
	return out.String()
}

// mountsBelow returns the mount points in dir: deleting across one would empty what is mounted there.
func mountsBelow(dir string) ([]string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	mounts, err := Mounts()
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range mounts {
		if strings.HasPrefix(m.Point, dir+"/") {
			points = append(points, m.Point)
		}
	}
	return points, nil
}
