package reclaimtree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Sizes in bytes: nearly every file takes one block, as in a directory of small modules; some take more.
const (
	small     = 1700
	large     = 14 << 10
	largeEach = 97 // one file in so many is large
)

// builder makes one runtime directory and counts what it makes.
type builder struct {
	root    string
	outside string
	seed    int

	files, directories int
	err                error
}

// runtime makes home and workspace. What the fixed part leaves of the shape goes to caches and dependencies.
func (b *builder) runtime(shape Shape, git []file) {
	for _, dir := range []string{".", "persistence", "persistence/.cache", "persistence/.npm"} {
		b.dir(dir)
	}
	b.file("persistence/.bashrc", small)
	b.link(b.outside, "persistence/.cache/elsewhere")
	b.project("workspace", git)
	b.dir("workspace/tools")
	b.project("workspace/tools/second", git)
	b.keep("workspace/third_party", git)

	files, directories := shape.Files-b.files, shape.Directories-b.directories
	cached := int(shape.CacheShare * float64(files))
	below := directories * cached / files
	b.fill("persistence/.cache/pip", cached/2, below/2)
	b.fill("persistence/.npm/_cacache", cached-cached/2, below-below/2)
	b.fill("workspace/node_modules", files-cached-files/8, directories-below-directories/8)
	b.fill("workspace/tools/second/node_modules", files/8, directories/8)
}

// project is a checkout with ignore rules, tracked and untracked files, and an ignored file that nobody may touch.
func (b *builder) project(at string, git []file) {
	b.dir(at)
	for _, f := range git {
		b.copy(at, f)
	}
	b.file(at+"/untracked.md", small)
	b.text(at+"/.env", "SECRET=1\n")
	b.dir(at + "/notes") // ignored, and no tool makes it again
	b.file(at+"/notes/mine.md", small)
	b.link("../../../../outside", at+"/out")
}

// keep is an ignored directory that holds a checkout and must stay.
func (b *builder) keep(at string, git []file) {
	b.dir(at)
	b.dir(at + "/build")
	b.text(at+"/package.json", "{}")
	b.dir(at + "/build/work")
	for _, f := range git {
		b.copy(at+"/build/work", f)
	}
}

// fill makes a tree of exactly so many files and directories beneath at, which is one of them; of the files some are links,
// some have two names.
func (b *builder) fill(at string, files, directories int) {
	b.dir(at)
	dirs := []string{at}
	for i := range directories - 1 {
		dir := fmt.Sprintf("%s/d%03d", dirs[i/3], i) // three below each: no tree is deep
		b.dir(dir)
		dirs = append(dirs, dir)
	}
	for i := range files {
		name := fmt.Sprintf("%s/module-%04d.js", dirs[i%len(dirs)], i)
		switch {
		case i%61 == 60:
			b.link(b.outside, name)
		case i%89 == 88:
			b.again(fmt.Sprintf("%s/module-%04d.js", dirs[(i-1)%len(dirs)], i-1), name)
		case i%largeEach == 0:
			b.file(name, large)
		default:
			b.file(name, small+(b.seed*31+i*17)%2300)
		}
	}
}

func (b *builder) dir(name string) {
	b.directories++
	b.do(os.MkdirAll(filepath.Join(b.root, name), 0o755))
}

func (b *builder) link(target, name string) {
	b.files++
	b.do(os.Symlink(target, filepath.Join(b.root, name)))
}

// again gives a file a second name; what is no file stays with one.
func (b *builder) again(of, name string) {
	if info, err := os.Lstat(filepath.Join(b.root, of)); err != nil || !info.Mode().IsRegular() {
		b.file(name, small)
		return
	}
	b.files++
	b.do(os.Link(filepath.Join(b.root, of), filepath.Join(b.root, name)))
}

func (b *builder) text(name, text string) {
	b.files++
	b.do(os.WriteFile(filepath.Join(b.root, name), []byte(text), 0o644))
}

var content = slices.Repeat([]byte("export const answer = 42;\n"), large/26+1)

func (b *builder) file(name string, bytes int) { b.text(name, string(content[:bytes])) }

func (b *builder) copy(at string, f file) {
	if f.text == nil {
		b.dir(at + "/" + f.name)
		return
	}
	b.text(at+"/"+f.name, string(f.text))
}

func (b *builder) do(err error) {
	if b.err == nil {
		b.err = err
	}
}

// file is one of a checkout's, with its repository; a directory has no text.
type file struct {
	name string
	text []byte
}

// ignored are the project's own rules.
const ignored = "node_modules/\nbuild/\nnotes/\n.env\n"

// indexed makes one checkout with git and reads it: every checkout of a tree is a copy of it.
func indexed() ([]file, error) {
	dir, err := os.MkdirTemp("", "reclaimtree-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	sources := map[string]string{".gitignore": ignored, "package.json": "{}", "README.md": "# a project\n"}
	for i := range 12 {
		sources[fmt.Sprintf("src/%02d.js", i)] = fmt.Sprintf("export const n = %d;\n", i)
	}
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		return nil, err
	}
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	for _, arguments := range [][]string{{"init", "-q", "--template="}, {"add", "."}} {
		call := exec.CommandContext(context.Background(), "git", arguments...)
		call.Dir = dir
		if output, err := call.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("git %s: %w: %s", arguments[0], err, output)
		}
	}
	var all []file
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error { // parents first
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case name == ".":
			return nil
		case entry.IsDir():
			all = append(all, file{name: name})
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a directory of our own
		all = append(all, file{name, append([]byte{}, text...)})
		return err
	})
	return all, err
}
