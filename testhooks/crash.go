//go:build testhooks

package testhooks

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// fatal is the point of AUTOMATION_TEST_CRASH=<point>[:n] and how often it is reached until the kill.
var fatal = struct {
	point Point
	left  atomic.Int64
}{}

func init() {
	point, nth, counted := strings.Cut(os.Getenv("AUTOMATION_TEST_CRASH"), ":")
	fatal.point = Point(point)
	n := 1
	if counted {
		var err error
		if n, err = strconv.Atoi(nth); err != nil || n < 1 {
			fmt.Fprintf(os.Stderr, "AUTOMATION_TEST_CRASH: %q is no count\n", nth)
			os.Exit(78)
		}
	}
	fatal.left.Store(int64(n))
}

// Reached kills the process as the kernel would when AUTOMATION_TEST_CRASH names the point, at the nth time.
func Reached(p Point) {
	if p != fatal.point || fatal.left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}
