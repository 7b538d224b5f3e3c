package tests

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// number finds statements in the names of tests: S1_010 in a function's name, S1-010 in a subtest's.
var number = regexp.MustCompile(`(?:^|[^A-Z0-9])(S[0-3]|C)[-_](\d{3})`)

// part is one block of statements.txt.
type part struct {
	name    string
	done    bool
	numbers []string
}

// parts reads statements.txt.
func parts(t *testing.T) []part {
	t.Helper()
	var all []part
	for line := range strings.Lines(document(t, "tests/statements.txt")) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "part":
			require.Len(t, words, 3, "%s", line)
			require.Contains(t, []string{"open", "done"}, words[2])
			all = append(all, part{name: words[1], done: words[2] == "done"})
		default:
			require.NotEmpty(t, all, "numbers before the first part: %s", line)
			last := &all[len(all)-1]
			for _, word := range words {
				last.numbers = append(last.numbers, span(t, word)...)
			}
		}
	}
	return all
}

// span is one number, or all of first…last.
func span(t *testing.T, word string) []string {
	t.Helper()
	first, last, ranged := strings.Cut(word, "…")
	series, from, ok := strings.Cut(first, "-")
	require.True(t, ok, "%q is no number", word)
	if !ranged {
		last = from
	}
	low, err := strconv.Atoi(from)
	require.NoError(t, err, word)
	high, err := strconv.Atoi(last)
	require.NoError(t, err, word)
	var numbers []string
	for n := low; n <= high; n++ {
		numbers = append(numbers, fmt.Sprintf("%s-%03d", series, n))
	}
	require.NotEmpty(t, numbers, word)
	return numbers
}

// spans writes neighbours as first…last.
func spans(numbers []string) []string {
	var short []string
	for i := 0; i < len(numbers); {
		j := i + 1
		for j < len(numbers) && following(numbers[j-1]) == numbers[j] {
			j++
		}
		if _, last, _ := strings.Cut(numbers[j-1], "-"); j > i+1 {
			short = append(short, numbers[i]+"…"+last)
		} else {
			short = append(short, numbers[i])
		}
		i = j
	}
	return short
}

func following(number string) string {
	series, digits, _ := strings.Cut(number, "-")
	n, _ := strconv.Atoi(digits)
	return fmt.Sprintf("%s-%03d", series, n+1)
}

// inTestNames collects the numbers that names of tests hold: of functions, of subtests, and of rows in tables of cases.
func inTestNames(t *testing.T) map[string]bool {
	t.Helper()
	held := map[string]bool{}
	hold := func(name string) {
		// "_" and "-" stand before the next number too, so the name is searched from each match on.
		for rest := name; ; {
			at := number.FindStringSubmatchIndex(rest)
			if at == nil {
				return
			}
			held[rest[at[2]:at[3]]+"-"+rest[at[4]:at[5]]] = true
			rest = rest[at[5]:]
		}
	}
	suites := slices.DeleteFunc(code(t), func(f source) bool { return !slices.Contains(testOnly, f.pkg) })
	for _, f := range slices.Concat(tested(t), suites) {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
				hold(strings.TrimPrefix(strings.TrimPrefix(fn.Name.Name, "Test"), "Fuzz"))
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Run" && len(n.Args) > 0 {
					holdText(n.Args[0], hold)
				}
			case *ast.CompositeLit:
				for _, element := range n.Elts {
					holdText(element, hold)
				}
			}
			return true
		})
	}
	return held
}

// holdText finds the texts in a subtest's name or in a row of a table of cases.
func holdText(x ast.Expr, hold func(string)) {
	switch x := x.(type) {
	case *ast.BasicLit:
		if x.Kind == token.STRING {
			hold(strings.Trim(x.Value, "`\""))
		}
	case *ast.KeyValueExpr:
		holdText(x.Key, hold)
		holdText(x.Value, hold)
	case *ast.BinaryExpr:
		holdText(x.X, hold)
		holdText(x.Y, hold)
	}
}

func TestEveryStatementOfADonePartIsInATestName(t *testing.T) {
	held := inTestNames(t)
	for _, p := range parts(t) {
		missing := slices.DeleteFunc(slices.Clone(p.numbers), func(n string) bool { return held[n] })
		fmt.Printf("statements of %s: %d of %d in test names\n", p.name, len(p.numbers)-len(missing), len(p.numbers))
		if len(missing) > 0 {
			fmt.Printf("  in no test name: %s\n", strings.Join(spans(missing), " "))
		}
		if p.done {
			requireNone(t, missing, "statements of "+p.name+" that no test names")
		}
	}
}

func TestNoStatementIsInTwoParts(t *testing.T) {
	home := map[string]string{}
	for _, p := range parts(t) {
		for _, n := range p.numbers {
			require.Empty(t, home[n], "%s is in %s and %s", n, home[n], p.name)
			home[n] = p.name
		}
	}
}

// row is a line of the table in REQUIREMENTS.md.
var row = regexp.MustCompile(`(?m)^\| ((?:S[0-3]|C)-\d{3}) \| (.*\S) *\|$`)

func TestEveryNumberInATestNameIsExplained(t *testing.T) {
	explained := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(document(t, "docs/REQUIREMENTS.md"), -1) {
		require.False(t, explained[m[1]], "%s has two rows", m[1])
		require.Greater(t, len(strings.Fields(m[2])), 3, "%s is explained in a few words only", m[1])
		explained[m[1]] = true
	}
	known := map[string]bool{}
	for _, p := range parts(t) {
		for _, n := range p.numbers {
			known[n] = true
		}
	}
	var found []string
	for _, n := range sorted(inTestNames(t)) {
		if !explained[n] {
			found = append(found, n)
		}
	}
	requireNone(t, found, "numbers in test names without a row in docs/REQUIREMENTS.md")
	for n := range explained {
		if !known[n] {
			found = append(found, n)
		}
	}
	requireNone(t, found, "rows of docs/REQUIREMENTS.md that no part of tests/statements.txt has")
}
