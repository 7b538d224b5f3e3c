package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mount is a line of /proc/self/mountinfo.
type mount struct {
	root   string // what of the file system is mounted
	point  string // where
	fsType string
}

func readMounts() ([]mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parseMounts(string(text)), nil
}

// parseMounts reads lines such as "38 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"; the number of fields before
// the dash varies.
func parseMounts(text string) []mount {
	var mounts []mount
	for line := range strings.Lines(text) {
		head, tail, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 5 || len(kind) < 1 {
			continue
		}
		mounts = append(mounts, mount{root: unescape(fields[3]), point: unescape(fields[4]), fsType: kind[0]})
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
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range mounts {
		if strings.HasPrefix(m.point, dir+"/") {
			points = append(points, m.point)
		}
	}
	return points, nil
}
