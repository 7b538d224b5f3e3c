package storage

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mountPoints lists what is mounted where. A bind mount of the same file system is seen by nothing else.
func mountPoints() []string {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer file.Close()
	var points []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			points = append(points, unescape(fields[4]))
		}
	}
	return points
}

// unescape undoes the octal escapes of mountinfo.
func unescape(text string) string {
	for _, c := range []int{' ', '\t', '\n', '\\'} {
		text = strings.ReplaceAll(text, `\0`+strconv.FormatInt(int64(c), 8), string(rune(c)))
		text = strings.ReplaceAll(text, `\`+strconv.FormatInt(int64(c), 8), string(rune(c)))
	}
	return text
}

// foreignMounts is what is mounted in every other mount namespace that can be looked at: what containers on this machine
// have mounted, whoever started them. It is the text of their mountinfo files.
func foreignMounts() string {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return ""
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return ""
	}
	seen := map[string]bool{own: true}
	var all strings.Builder
	for _, process := range processes {
		if _, err := strconv.Atoi(process.Name()); err != nil {
			continue
		}
		namespace, err := os.Readlink("/proc/" + process.Name() + "/ns/mnt")
		if err != nil || seen[namespace] {
			continue
		}
		if text, err := os.ReadFile("/proc/" + process.Name() + "/mountinfo"); err == nil {
			seen[namespace] = true
			all.Write(text)
		}
	}
	return all.String()
}

// mountLook is what foreignMounts said last: looking at every process is too slow to do it for each thing that is moved.
type mountLook struct {
	mu   sync.Mutex
	at   time.Time
	text string
}

// since is what was mounted at some moment not before this one.
func (l *mountLook) since(moment time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.Before(moment) {
		l.at = time.Now()
		l.text = foreignMounts()
	}
	return l.text
}
