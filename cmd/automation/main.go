// Command automation runs agent automations in sandboxes, keeps every finished one paused for inspection, and never loses
// or leaks one. See `automation help`.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(Main(context.Background(), os.Args[1:], Streams{Env: os.Environ(), Out: os.Stdout, Err: os.Stderr}))
}
