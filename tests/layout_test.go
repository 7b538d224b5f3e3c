package tests

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mayImport says which packages of ours the code of a package may import; a package that is not named here fails. A name that
// ends in /... stands for all below it. Packages of a provider (sandbox/backend/x) follow sandbox/backend/....
var mayImport = map[string][]string{
	"config":              nil,
	"migrations":          nil,
	"loop":                nil,
	"blob":                nil,
	"blob/blobtest":       nil,
	"metrics":             {"loop", "models", "sandbox"},
	"testhooks":           nil,
	"models":              nil,
	"models/customer":     {"models"},
	"models/modelstest":   {"models", "migrations"},
	"sandbox":             {"models", "testhooks"},
	"sandbox/sandboxtest": {"sandbox", "models"},
	"sandbox/backend":     {"sandbox", "models", "config", "sandbox/backend/..."},
	"sandbox/backend/...": {"sandbox", "models", "config", "sandbox/backend/filetree"},
	"scheduler":           {"loop", "models", "sandbox", "config", "testhooks"},
	"watchdog":            {"loop", "models", "sandbox", "config", "testhooks"},
	"session":             {"loop", "models", "models/customer", "sandbox"},
	"router":              {"models", "models/customer", "sandbox", "session", "config"},
	"agentserver":         {"agentserver/..."},
	"agentserver/...":     {"agentserver/..."},
	"cmd/agentserver":     {"agentserver"},
	"cmd/automation":      {"..."},
	"tests":               nil,
	"tests/cloudstub":     nil,
	"tests/dockerengine":  nil,
	"tests/...":           nil,
}

// testOnly are packages that only tests import.
var testOnly = []string{"models/modelstest", "sandbox/sandboxtest", "blob/blobtest", "tests/cloudstub", "tests/dockerengine"}

// rule finds a package's row of mayImport: its own, or that of the nearest folder above with /....
func rule(pkg string) ([]string, bool) {
	if allowed, ok := mayImport[pkg]; ok {
		return allowed, true
	}
	for dir := filepath.Dir(pkg); dir != "."; dir = filepath.Dir(dir) {
		if allowed, ok := mayImport[dir+"/..."]; ok {
			return allowed, true
		}
	}
	return nil, false
}

func matches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		below, all := strings.CutSuffix(p, "...")
		return p == pkg || all && strings.HasPrefix(pkg, below)
	})
}

func TestS0_011_ImportsFollowTheTable(t *testing.T) {
	var found []string
	for _, f := range code(t) {
		allowed, ok := rule(f.pkg)
		if !ok {
			found = append(found, f.pkg+" has no row in mayImport")
			continue
		}
		for _, path := range f.imports() {
			pkg, ours := strings.CutPrefix(path, module+"/")
			if ours && !matches(allowed, pkg) {
				found = append(found, f.path+" imports "+pkg)
			}
			if ours && slices.Contains(testOnly, pkg) && !slices.Contains(testOnly, f.pkg) {
				found = append(found, f.path+" imports "+pkg+", which is for tests")
			}
		}
	}
	requireNone(t, found, "imports outside the table")
}

func TestS0_004_BoxAndOrchestratorMeetOnlyOverHTTP(t *testing.T) {
	var found []string
	for _, f := range code(t) {
		inBox := f.pkg == "agentserver" || strings.HasPrefix(f.pkg, "agentserver/")
		for _, path := range f.imports() {
			pkg, ours := strings.CutPrefix(path, module+"/")
			theirs := pkg == "agentserver" || strings.HasPrefix(pkg, "agentserver/")
			if ours && inBox && !theirs || ours && theirs && !inBox && !strings.HasPrefix(f.pkg, "cmd/") {
				found = append(found, f.path+" imports "+pkg)
			}
		}
	}
	requireNone(t, found, "the agent server and the rest of ours import each other")
}

// providers are names and credentials that the in-box part must not know.
var providers = regexp.MustCompile(`(?i)digital ?ocean|\bmodal\b|daytona|\be2b\b|cloudflare|runtime-api|all-hands\.dev|AUTOMATION_[A-Z_]*KEY|OPENHANDS_API_KEY|DIGITALOCEAN_|MODAL_TOKEN`)

func TestS0_006_S0_010_S0_149_TheInBoxPartKnowsNoProvider(t *testing.T) {
	var found []string
	for _, f := range code(t) {
		if f.pkg != "agentserver" && !strings.HasPrefix(f.pkg, "agentserver/") && f.pkg != "cmd/agentserver" {
			continue
		}
		for _, hit := range providers.FindAllString(f.text, -1) {
			found = append(found, f.path+": "+hit)
		}
	}
	requireNone(t, found, "names of providers or of their credentials in the in-box part (S0-010: it cannot pause, delete or bill its own box)")
}

func TestS0_003_TheInBoxPartHasNoCallToPauseOrDestroyItsBox(t *testing.T) {
	route := regexp.MustCompile(`"[^"\n]*/(pause|suspend|resume|destroy|terminate)"`)
	var found []string
	for _, f := range code(t) {
		if strings.HasPrefix(f.pkg, "agentserver") {
			for _, hit := range route.FindAllString(f.text, -1) {
				if !strings.Contains(hit, "/conversations/{id}/") { // pauses an agent in the box, not the box
					found = append(found, f.path+": "+hit)
				}
			}
		}
	}
	requireNone(t, found, "routes of a provider in the in-box part")
}

func TestS0_142_S0_148_WhatProvidersCanDoIsDataOfTheAdapters(t *testing.T) {
	names := regexp.MustCompile(`"(digitalocean|daytona|e2b|modal|cloudflare|runtime-api)"`)
	var found []string
	for _, f := range code(t) {
		if !strings.HasPrefix(f.pkg, "sandbox/backend") && f.pkg != "config" {
			for _, hit := range names.FindAllString(f.text, -1) {
				found = append(found, f.path+": "+hit)
			}
		}
	}
	requireNone(t, found, "names of providers outside their adapters")
}

func TestS0_015_S0_017_S0_149_DroppedIdeasDoNotAppear(t *testing.T) {
	dropped := regexp.MustCompile(`\b(RuntimeBackend|Suspendable|Deletable|Pausable|Resumable|Listable|ActivityTracker|PathFree\w*)\b`)
	var found []string
	for _, f := range code(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && dropped.MatchString(id.Name) {
				found = append(found, f.at(id.Pos())+": "+id.Name)
			}
			return true
		})
	}
	requireNone(t, found, "role interfaces, a second hierarchy of backends, trackers of activity")
}

func TestC_003_TheTopLevelHoldsWhatTheCardNamesAndWhatHasAReason(t *testing.T) {
	card := []string{"cmd", "router", "watchdog", "sandbox", "models", "migrations", "config", "tests", "go.mod", "go.sum", "AGENTS.md"}
	// Each with its reason in AGENTS.md, or a file that tools and people expect.
	more := []string{"scheduler", "loop", "session", "agentserver", "blob", "metrics", "testhooks", "docs", "README.md", "LICENSE", "Makefile", ".golangci.yml", ".gitignore", ".ci", "Dockerfile", ".dockerignore"}
	generated := []string{".git", "bin", "dist", ".cache"}
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	present := map[string]bool{}
	var found []string
	for _, e := range entries {
		present[e.Name()] = true
		if !slices.Contains(slices.Concat(card, more, generated), e.Name()) {
			found = append(found, e.Name())
		}
	}
	requireNone(t, found, "unexpected at the top")
	for _, name := range slices.Concat(card, []string{"cmd/automation"}) {
		_, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err, "%s of the card is missing", name)
	}
	agents := document(t, "AGENTS.md")
	for _, folder := range []string{"cmd/agentserver", "scheduler", "loop", "agentserver", "blob", "metrics", "testhooks", "docs"} {
		require.Contains(t, agents, "`"+folder, "the reason for %s", folder)
	}
}

func TestNamesThatSayNothingAreAvoided(t *testing.T) {
	bad := []string{"util", "utils", "common", "helper", "helpers", "internal", "pkg", "misc", "base", "shared", "lib"}
	var found []string
	for _, path := range tracked(t) {
		for part := range strings.SplitSeq(path, "/") {
			if slices.Contains(bad, strings.TrimSuffix(strings.TrimSuffix(part, ".go"), "_test")) {
				found = append(found, path)
			}
		}
	}
	requireNone(t, found, "names to avoid")
}

func TestEveryPackageHasADocComment(t *testing.T) {
	var found []string
	for pkg, files := range packages(code(t)) {
		documented := slices.ContainsFunc(files, func(f source) bool {
			doc := f.ast.Doc.Text()
			return strings.HasPrefix(doc, "Package "+f.ast.Name.Name+" ") || f.ast.Name.Name == "main" && strings.HasPrefix(doc, "Command ")
		})
		if !documented {
			found = append(found, pkg)
		}
	}
	requireNone(t, found, "packages without a doc comment (Package x … or Command x …)")
}

func TestEveryExportedNameHasADocComment(t *testing.T) {
	var found []string
	for _, f := range code(t) {
		if f.generated || f.ast.Name.Name == "main" {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc.Text() == "" {
					found = append(found, f.at(d.Pos())+": "+d.Name.Name)
				}
			case *ast.GenDecl:
				for _, name := range undocumented(d) {
					found = append(found, f.at(name.Pos())+": "+name.Name)
				}
			}
		}
	}
	requireNone(t, found, "exported names without a doc comment")
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// undocumented lists exported names of a declaration that have no comment: on the name or, in a group, on the group or beside
// the name.
func undocumented(d *ast.GenDecl) []*ast.Ident {
	var names []*ast.Ident
	group := d.Doc.Text() != ""
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc.Text() == "" && !group {
				names = append(names, s.Name)
			}
		case *ast.ValueSpec:
			if s.Doc.Text() != "" || s.Comment.Text() != "" || group {
				continue
			}
			for _, name := range s.Names {
				if name.IsExported() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

func TestS1_064_EveryFileIsFormatted(t *testing.T) {
	all, err := sources()
	require.NoError(t, err)
	var found []string
	for _, f := range all {
		formatted, err := format.Source([]byte(f.text))
		require.NoError(t, err, f.path)
		if !f.generated && !bytes.Equal(formatted, []byte(f.text)) {
			found = append(found, f.path)
		}
	}
	requireNone(t, found, "not formatted by gofmt")
	lint := document(t, ".golangci.yml")
	for _, tool := range []string{"staticcheck", "govet"} {
		require.Contains(t, lint, "- "+tool)
	}
}

func TestFilesStayShort(t *testing.T) {
	const most = 500
	var found []string
	for _, f := range code(t) {
		if lines := strings.Count(f.text, "\n"); lines > most && !f.generated {
			found = append(found, f.path)
		}
	}
	requireNone(t, found, "files too long to read at a sitting")
}

// startsGoroutines lists the files outside loop with a go statement, and who stops and waits for what they start.
var startsGoroutines = map[string]string{
	"models/writer.go":                      "the SQLite writer; Store.Close ends it and waits",
	"sandbox/backend/process/supervisor.go": "the supervisor of one box; they end with its process",
	"agentserver/main.go":                   "the listener; the same function shuts it down and waits",
	"agentserver/command/job.go":            "readers of one command; its job waits for them",
	"agentserver/storage/trash.go":          "emptying of the trash; Close waits",
	"cmd/automation/agentrelay.go":          "standard input; ends with it, or with the process",
	"router/proxysocket.go":                 "the two directions of a WebSocket; each ends the other at the close of its connection",
	"session/chunk.go":                      "the reader of one stream; the same function waits for it",
	"tests/dockerengine/engine.go":          "of tests; the same function waits for it",
	"cmd/automation/metrics.go":             "the listener of scrapes; the function it returns stops it and waits",
	"cmd/automation/app.go":                 "listener and loops; the same function stops them and waits",
	"cmd/automation/demo.go":                "the served application; the same function stops it and waits",
}

func TestGoroutinesStartInLoopOrHaveAnOwner(t *testing.T) {
	var found []string
	seen := map[string]bool{}
	for _, f := range code(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok && f.pkg != "loop" {
				seen[f.path] = true
				if startsGoroutines[f.path] == "" {
					found = append(found, f.at(g.Pos()))
				}
			}
			return true
		})
	}
	for path := range startsGoroutines {
		if !seen[path] {
			found = append(found, path+" starts none any more: drop its row")
		}
	}
	requireNone(t, found, "goroutines without a known owner")
}

func TestSQLIsInModelsAndMigrationsOnly(t *testing.T) {
	statement := regexp.MustCompile(`(?is)^\s*(select\s.+\sfrom\s|insert\s+into\s|update\s+\w+\s+set\s|delete\s+from\s|create\s+(table|index|unique)\s|alter\s+table\s|pragma\s)`)
	homes := []string{"models", "models/customer", "models/modelstest", "migrations"}
	var found []string
	for _, f := range code(t) {
		if slices.Contains(homes, f.pkg) {
			continue
		}
		for _, path := range f.imports() {
			if strings.HasPrefix(path, "github.com/uptrace/bun") || path == "github.com/lib/pq" {
				found = append(found, f.path+" imports "+path)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && statement.MatchString(strings.Trim(lit.Value, "`\"")) {
				found = append(found, f.at(lit.Pos())+": "+lit.Value)
			}
			return true
		})
	}
	requireNone(t, found, "SQL outside models and migrations")
}

func TestStatusesOfHTTPErrorsAreInOnePlace(t *testing.T) {
	var found []string
	for _, f := range code(t) {
		if f.pkg != "models" && f.pkg != "sandbox" && f.pkg != "scheduler" && f.pkg != "watchdog" && f.pkg != "loop" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "ResponseWriter" {
				found = append(found, f.at(sel.Pos()))
			}
			return true
		})
	}
	requireNone(t, found, "answers to HTTP requests outside the router")
}

func TestNothingReadsTheEnvironmentButConfigAndMain(t *testing.T) {
	// Besides config: main hands the environment on; the agent server and a box's supervisor are programs of their own; the
	// hooks of tests are in no release.
	allowed := []string{"config", "testhooks", "cmd/automation", "cmd/agentserver", "agentserver", "agentserver/...", "sandbox/backend/...", "models/modelstest", "sandbox/sandboxtest", "tests/..."}
	var found []string
	for _, f := range code(t) {
		if matches(allowed, f.pkg) {
			continue
		}
		for _, hit := range regexp.MustCompile(`os\.(Getenv|LookupEnv|Environ)\b`).FindAllString(f.text, -1) {
			found = append(found, f.path+": "+hit)
		}
	}
	requireNone(t, found, "reads of the environment")
}
