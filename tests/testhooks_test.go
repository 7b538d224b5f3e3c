package tests

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hooked are the variables of the test hooks.
const hooked = "AUTOMATION_TEST_"

func TestTheTestHooksAreAbsentFromReleases(t *testing.T) {
	const tag = "//go:build testhooks\n"
	var found []string
	for _, f := range code(t) {
		if f.pkg == "tests" || strings.HasPrefix(f.text, tag) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && strings.Contains(lit.Value, hooked) {
				found = append(found, f.at(lit.Pos()))
			}
			return true
		})
	}
	requireNone(t, found, "variables of the test hooks outside files with their tag")
	for _, path := range []string{"Makefile", "Dockerfile"} {
		require.NotContains(t, document(t, path), "testhooks", "%s builds releases", path)
	}
	for built, has := range map[string]bool{build(t): false, buildHooked(t): true} {
		program, err := os.ReadFile(built)
		require.NoError(t, err)
		require.Equal(t, has, strings.Contains(string(program), hooked+"CRASH"), built)
	}
}

func TestEveryPointOfTheTestHooksIsReachedInOnePlace(t *testing.T) {
	reached := map[string]int{}
	declared := regexp.MustCompile(`(?m)^\t(\w+) +Point = "`)
	var listed []string
	for _, f := range code(t) {
		if f.path == "testhooks/points.go" {
			for _, point := range declared.FindAllStringSubmatch(f.text, -1) {
				listed = append(listed, point[1])
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Reached" && len(call.Args) == 1 {
				if point, ok := call.Args[0].(*ast.SelectorExpr); ok {
					reached[point.Sel.Name]++
				}
			}
			return true
		})
	}
	require.Len(t, listed, 13, "the points of the design")
	for _, point := range listed {
		require.Equal(t, 1, reached[point], "%s has one call of Reached", point)
		delete(reached, point)
	}
	require.Empty(t, reached, "points that points.go does not list")
}
