package tests

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logMethods are the methods of slog.Logger that write or extend lines, and where their keys begin.
var logMethods = map[string]int{
	"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0,
	"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2,
}

// otherNames are keys that lines have under another name.
var otherNames = map[string]string{
	"box": "workspace_id", "workspace": "workspace_id", "run": "run_id", "automation": "automation_id", "sandbox": "sandbox_id",
	"provider_id": "sandbox_id", "backend": "provider", "err": "error", "cause": "error", "panic": "error", "duration": "duration_ms",
	"status_text": "status_code", "user": "user_id", "upload": "upload_id", "command": "command_id", "conversation": "conversation_id",
}

// logCalls calls visit with every call of a logger in the code.
func logCalls(t *testing.T, visit func(f source, method string, call *ast.CallExpr)) {
	t.Helper()
	for _, f := range code(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if _, logs := logMethods[sel.Sel.Name]; logs && isLogger(sel.X) {
				visit(f, sel.Sel.Name, call)
			}
			return true
		})
	}
}

func isLogger(x ast.Expr) bool {
	name := ""
	switch e := x.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	}
	return slices.Contains([]string{"log", "logger", "slog"}, strings.ToLower(name))
}

// TestMessagesOfLogLinesAreConstant keeps identifiers and error texts out of messages, so that equal failures are equal lines.
func TestMessagesOfLogLinesAreConstant(t *testing.T) {
	var found []string
	lines := 0
	logCalls(t, func(f source, method string, call *ast.CallExpr) {
		at := logMethods[method] - 1
		if at < 0 || len(call.Args) <= at {
			return
		}
		lines++
		if lit, ok := call.Args[at].(*ast.BasicLit); !ok || lit.Kind != token.STRING {
			found = append(found, f.at(call.Pos()))
		}
	})
	requireNone(t, found, "messages of log lines that are put together: the facts belong into keys")
	if lines < 40 {
		t.Fatalf("only %d log lines were found", lines)
	}
}

func TestKeysOfLogLinesAreTheCommonOnes(t *testing.T) {
	plain := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	var found []string
	logCalls(t, func(f source, method string, call *ast.CallExpr) {
		from := logMethods[method]
		for n := from; n < len(call.Args); n += 2 {
			lit, ok := call.Args[n].(*ast.BasicLit)
			if !ok {
				continue
			}
			key, err := strconv.Unquote(lit.Value)
			if err != nil || !plain.MatchString(key) || otherNames[key] != "" && !slices.Contains(spelled, f.path+" "+key) {
				found = append(found, f.at(lit.Pos())+": "+key+" "+otherNames[key])
			}
		}
	})
	requireNone(t, found, "keys of log lines that have another name elsewhere")
}

// spelled are keys that mean something else in their file.
var spelled = []string{
	"cmd/automation/serve.go backend", // a sentence about where new runs go
}
