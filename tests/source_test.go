package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the top of the repository, seen from this package.
const root = ".."

// module is the path of our own module.
const module = "automation"

// source is one Go file of the repository.
type source struct {
	path      string // from the top, with slashes
	pkg       string // the folder of its package, from the top
	test      bool
	generated bool
	text      string
	ast       *ast.File
	fset      *token.FileSet
}

// at is a place in the file, for messages.
func (s source) at(pos token.Pos) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(pos).Line)
}

// imports lists what the file imports.
func (s source) imports() []string {
	var paths []string
	for _, spec := range s.ast.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, path)
	}
	return paths
}

// sources parses every Go file once.
var sources = sync.OnceValues(func() ([]source, error) {
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") || d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
		dir := filepath.ToSlash(filepath.Dir(name))
		all = append(all, source{
			path: name, pkg: dir, test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(file),
			text: string(text), ast: file, fset: fset,
		})
		return nil
	})
	return all, err
})

// code returns every Go file that is no test; tested returns the tests.
func code(t *testing.T) []source   { return pick(t, false) }
func tested(t *testing.T) []source { return pick(t, true) }

func pick(t *testing.T, test bool) []source {
	t.Helper()
	all, err := sources()
	require.NoError(t, err)
	return slices.DeleteFunc(slices.Clone(all), func(s source) bool { return s.test != test })
}

// packages groups files by package folder.
func packages(files []source) map[string][]source {
	byFolder := map[string][]source{}
	for _, f := range files {
		byFolder[f.pkg] = append(byFolder[f.pkg], f)
	}
	return byFolder
}

// tracked lists the text files of the repository, Go files and others, from the top.
func tracked(t *testing.T) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
		if d.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "dist"}, rel) {
			return filepath.SkipDir
		}
		if !d.IsDir() && filepath.Base(rel) != "go.sum" {
			files = append(files, rel)
		}
		return nil
	}))
	return files
}

// document reads a file from the top.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(text)
}

// flat is text with every run of white space as one blank, so that a sentence may break anywhere.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// requireNone fails with the list of what was found.
func requireNone(t *testing.T, found []string, why string) {
	t.Helper()
	slices.Sort(found)
	require.Empty(t, found, "%s:\n  %s", why, strings.Join(found, "\n  "))
}
