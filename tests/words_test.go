package tests

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// eachLine calls visit with every line of every text file but the named ones.
func eachLine(t *testing.T, visit func(path string, number int, line string), but ...string) {
	t.Helper()
	for _, path := range tracked(t) {
		content, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		if !utf8.Valid(content) || matches(but, path) {
			continue
		}
		for i, line := range strings.Split(string(content), "\n") {
			visit(path, i+1, line)
		}
	}
}

func TestS0_053_TheWordIsArchived(t *testing.T) {
	word := regexp.MustCompile(`(?i)\b(un)?re` + `tir(e|ed|es|ing|ement)\b`)
	var found []string
	eachLine(t, func(path string, _ int, line string) {
		if word.MatchString(line) {
			found = append(found, path+": "+strings.TrimSpace(line))
		}
	})
	requireNone(t, found, "the word is archived, everywhere")
}

func TestNoPathOfAMachineOfOurs(t *testing.T) {
	machine := regexp.MustCompile(`(^|[\s"'=(:])/(work|root|Users)/[a-z]|/home/(?:[a-z]+)/(?:go|src|work)|/tmp/(team|bash_jobs)`)
	var found []string
	eachLine(t, func(path string, _ int, line string) {
		if machine.MatchString(line) {
			found = append(found, path+": "+strings.TrimSpace(line))
		}
	}, "tests/words_test.go")
	requireNone(t, found, "absolute paths of one machine")
}

func TestNothingIsLeftForLater(t *testing.T) {
	later := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b|panic\("(unwritten|not implemented)`)
	var found []string
	eachLine(t, func(path string, _ int, line string) {
		if later.MatchString(line) && filepath.Ext(path) != ".md" {
			found = append(found, path+": "+strings.TrimSpace(line))
		}
	}, "tests/words_test.go")
	requireNone(t, found, "unfinished work")
}

// calls finds calls of pkg.name in tests.
func calls(t *testing.T, pkg, name string) []string {
	t.Helper()
	var found []string
	for _, f := range tested(t) {
		bubble := strings.Contains(f.text, `"testing/synctest"`)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != name {
				return true
			}
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == pkg && !bubble {
				found = append(found, f.at(sel.Pos()))
			}
			return true
		})
	}
	return found
}

func TestTestsAwaitEventsAndDoNotSleep(t *testing.T) {
	requireNone(t, calls(t, "time", "Sleep"), "time.Sleep outside testing/synctest")
}

// maySkip are the only places where a test may be skipped, each outside CI only.
var maySkip = map[string]string{
	"models/modelstest/modelstest.go":      "PostgreSQL is not there; fails in CI",
	"migrations/migrations_test.go":        "PostgreSQL is not there; fails in CI",
	"sandbox/backend/process/main_test.go": "no writable cgroup; fails in CI",
	"tests/harness_test.go":                "PostgreSQL is not there; fails in CI",
	"tests/bench/peer_test.go":             "what is measured beside is not there",
	"tests/bench/python_test.go":           "what is measured beside is not there",
	"tests/bench/service_test.go":          "PostgreSQL is not there",
	"tests/cluster_test.go":                "PostgreSQL is not there; fails in CI",
	"tests/dockerengine/engine.go":         "the Docker engine is not there; fails in CI",
	"tests/python_test.go":                 "the Python environment is not there; fails in CI",
}

func TestTestsAreSkippedOnlyForAMissingService(t *testing.T) {
	all, err := sources()
	require.NoError(t, err)
	var found []string
	for _, f := range all {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Skip") && maySkip[f.path] == "" {
				if id, ok := sel.X.(*ast.Ident); ok && (id.Name == "t" || id.Name == "b" || id.Name == "tb") {
					found = append(found, f.at(call.Pos()))
				}
			}
			return true
		})
	}
	requireNone(t, found, "skipped tests")
}

func TestVolumeCasesSaySoInTheirName(t *testing.T) {
	var found []string
	for _, f := range tested(t) {
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") || strings.Contains(fn.Name.Name, "Volume") {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Volume" {
					found = append(found, f.at(fn.Pos())+": "+fn.Name.Name)
				}
				return true
			})
		}
	}
	requireNone(t, found, "the runner finds cases to repeat at full size by Volume in the test's name")
}
