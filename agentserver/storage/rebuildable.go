package storage

import (
	"path"
	"slices"
	"strings"
)

// rebuildable is a directory that a tool can make again.
type rebuildable struct {
	name   string   // the end of its path
	tool   string   // what makes it again
	beside []string // one of these files next to it proves it; none: the tool's own mark inside does
	inside string   // the tool's own mark in it
}

// rebuildables is the whole list: a name that is not on it stays, whatever the ignore rules say.
var rebuildables = []rebuildable{
	{name: "node_modules", tool: "npm, pnpm, yarn, bun", beside: []string{"package.json"}},
	{name: ".next", tool: "next build", beside: []string{"package.json"}},
	{name: ".nuxt", tool: "nuxt build", beside: []string{"package.json"}},
	{name: ".turbo", tool: "turbo run", beside: []string{"package.json"}},
	{name: ".parcel-cache", tool: "parcel", beside: []string{"package.json"}},
	{name: ".venv", tool: "python -m venv, uv", inside: "pyvenv.cfg"},
	{name: "venv", tool: "python -m venv, uv", inside: "pyvenv.cfg"},
	{name: "__pycache__", tool: "python", inside: "*.pyc"},
	{name: ".mypy_cache", tool: "mypy", inside: "CACHEDIR.TAG"},
	{name: ".pytest_cache", tool: "pytest", inside: "CACHEDIR.TAG"},
	{name: ".ruff_cache", tool: "ruff", inside: "CACHEDIR.TAG"},
	{name: ".tox", tool: "tox", beside: []string{"tox.ini", "setup.cfg", "pyproject.toml"}},
	{name: ".nox", tool: "nox", beside: []string{"noxfile.py"}},
	{name: "target", tool: "cargo, mvn, sbt", beside: []string{"Cargo.toml", "pom.xml", "build.sbt"}},
	{name: ".gradle", tool: "gradle", beside: gradleFiles},
	{name: "build", tool: "gradle, npm, python -m build, cmake, flutter", beside: append([]string{
		"package.json", "pyproject.toml", "setup.py", "CMakeLists.txt", "pubspec.yaml",
	}, gradleFiles...)},
	{name: "dist", tool: "npm, python -m build", beside: []string{"package.json", "pyproject.toml", "setup.py"}},
	{name: "vendor/bundle", tool: "bundle install", beside: []string{"Gemfile"}},
	{name: "Pods", tool: "pod install", beside: []string{"Podfile"}},
	{name: ".dart_tool", tool: "dart pub get", beside: []string{"pubspec.yaml"}},
	{name: "elm-stuff", tool: "elm make", beside: []string{"elm.json"}},
}

var gradleFiles = []string{"build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"}

// provenBy returns the entry of the list that a directory is, proven by what lies beside it or in it.
func provenBy(checkout handle, name string) bool {
	at := slices.IndexFunc(rebuildables, func(r rebuildable) bool { return name == r.name || strings.HasSuffix(name, "/"+r.name) })
	if at < 0 {
		return false
	}
	r := rebuildables[at]
	if r.inside != "" {
		return holdsFile(checkout, name, []string{r.inside})
	}
	around := strings.TrimSuffix(strings.TrimSuffix(name, r.name), "/")
	return holdsFile(checkout, path.Join(".", around), r.beside)
}

// holdsFile reports whether a directory holds an ordinary file of one of these patterns.
func holdsFile(checkout handle, name string, patterns []string) bool {
	dir, err := checkout.descend(name)
	if err != nil {
		return false
	}
	defer dir.close()
	names, _ := dir.names(-1)
	for _, entry := range names {
		for _, pattern := range patterns {
			if match, _ := path.Match(pattern, entry); !match {
				continue
			}
			if st, err := dir.stat(entry); err == nil && isFile(st) {
				return true
			}
		}
	}
	return false
}

// isWork reports whether a file of this name is somebody's data, wherever it lies: a database, or what a tool knows of the
// world only from it.
func isWork(name string) bool {
	lower := strings.ToLower(name)
	for _, end := range []string{
		".db", ".db3", ".sqlite", ".sqlite3", ".sqlite-wal", ".db-wal", ".duckdb", ".mdb", ".accdb", ".realm", ".rdb", ".kdbx",
		".tfstate", ".tfstate.backup",
	} {
		if strings.HasSuffix(lower, end) {
			return true
		}
	}
	return name == "PG_VERSION" || lower == "ibdata1" || lower == "terraform.tfstate.d" || lower == ".terraform"
}
