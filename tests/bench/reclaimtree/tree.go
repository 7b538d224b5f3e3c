// Package reclaimtree makes the directories that reclaimers are measured on: a server of docker runtimes with many stopped
// conversations, each with caches, ignored dependencies, tracked and untracked files, a second checkout, and links that lead
// out. Equal shapes give equal trees, so that two reclaimers can work on the same (`make bench`).
package reclaimtree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// Shape says how large a tree is. The counts are of everything beneath Tree.Runtimes, per conversation.
type Shape struct {
	Conversations int
	Files         int // with links of both kinds
	Directories   int
	CacheShare    float64 // of the files; the rest but some hundred are dependencies
}

// Full is the size that is measured: 200 conversations, 386,000 files and links, 79,000 directories, 1.9 GB on disk.
var Full = Shape{Conversations: 200, Files: 1930, Directories: 395, CacheShare: 0.42}

// Small is a hundredth of it, for tests of what measures.
var Small = Shape{Conversations: 2, Files: 1930, Directories: 395, CacheShare: 0.42}

// Tree is a made tree. Start the agent server with HOME=Home, OH_PERSISTENCE_DIR=State, OH_CONVERSATIONS_PATH=Histories and
// OH_CONVERSATION_RUNTIME=docker.
type Tree struct {
	Home      string // of the server itself, empty
	State     string // OH_PERSISTENCE_DIR: runtime-data/<id>/{persistence,workspace}
	Runtimes  string // State/runtime-data
	Histories string // OH_CONVERSATIONS_PATH: <id>/{meta,base_state}.json, events
	Outside   string // what the links lead to; no reclaimer may change it
	IDs       []string
}

// Make fills the directory at root, which must be empty or not there. It takes some ten seconds at full size.
func Make(root string, shape Shape) (Tree, error) {
	tree := Tree{
		Home: filepath.Join(root, "home"), State: filepath.Join(root, "state"), Runtimes: filepath.Join(root, "state/runtime-data"),
		Histories: filepath.Join(root, "history"), Outside: filepath.Join(root, "outside"),
	}
	for _, dir := range []string{tree.Home, tree.State, tree.Runtimes, tree.Histories, tree.Outside} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return Tree{}, fmt.Errorf("reclaim tree: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(tree.Outside, "precious"), []byte("not yours"), 0o600); err != nil {
		return Tree{}, fmt.Errorf("reclaim tree: %w", err)
	}
	git, err := indexed()
	if err != nil {
		return Tree{}, fmt.Errorf("reclaim tree: %w", err)
	}
	for i := range shape.Conversations {
		tree.IDs = append(tree.IDs, fmt.Sprintf("%08x00004000800000000000%04x", i*2654435761&0xffffffff, i))
	}
	errs := make([]error, len(tree.IDs))
	next := make(chan int)
	var workers sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		workers.Go(func() {
			for i := range next {
				errs[i] = tree.conversation(i, shape, git)
			}
		})
	}
	for i := range tree.IDs {
		next <- i
	}
	close(next)
	workers.Wait()
	if err := errors.Join(errs...); err != nil {
		return Tree{}, fmt.Errorf("reclaim tree: %w", err)
	}
	return tree, nil
}

// conversation makes the runtime and the history of one.
func (t Tree) conversation(i int, shape Shape, git []file) error {
	b := &builder{root: filepath.Join(t.Runtimes, t.IDs[i]), outside: t.Outside, seed: i}
	b.runtime(shape, git)
	if b.err != nil {
		return b.err
	}
	if b.files != shape.Files || b.directories != shape.Directories {
		return fmt.Errorf("%d files and %d directories do not fit into %+v", b.files, b.directories, shape)
	}
	return t.history(i)
}

// history is that of a conversation that was paused some days ago, the first of all the longest.
func (t Tree) history(i int) error {
	dir := filepath.Join(t.Histories, t.IDs[i])
	if err := os.MkdirAll(filepath.Join(dir, "events"), 0o700); err != nil {
		return err
	}
	files := map[string]string{
		"meta.json":       fmt.Sprintf(`{"id":%q,"title":"conversation %d"}`, t.IDs[i], i),
		"base_state.json": fmt.Sprintf(`{"id":%q,"execution_status":"paused"}`, t.IDs[i]),
	}
	for n := range 5 {
		files[fmt.Sprintf("events/event-%05d-%s.json", n, t.IDs[i])] = fmt.Sprintf(`{"kind":"MessageEvent","n":%d}`, n)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	used := time.Now().Add(-time.Duration(len(t.IDs)-i) * time.Hour)
	return os.Chtimes(filepath.Join(dir, "base_state.json"), used, used)
}
