package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// section is a page's text from a heading to the next of its level or above.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	text := document(t, page)
	level, _, _ := strings.Cut(heading, " ")
	_, rest, ok := strings.Cut("\n"+text, "\n"+heading+"\n")
	require.True(t, ok, "%s has no %q", page, heading)
	end := regexp.MustCompile(`(?m)^#{1,` + string(rune('0'+len(level))) + `} `)
	if at := end.FindStringIndex(rest); at != nil {
		rest = rest[:at[0]]
	}
	return rest
}

func TestS1_003_S1_004_TheDelayIsDocumentedBesideTheOtherRetentionSettings(t *testing.T) {
	retention := section(t, "docs/OPERATIONS.md", "## Retention")
	for _, setting := range []string{"AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS", "AUTOMATION_WORKSPACE_RETENTION_SECONDS"} {
		require.Contains(t, retention, "| `"+setting+"` |")
	}
	require.Regexp(t, "seconds \\(not minutes\\).*integer", retention)
}

func TestS1_038_TheProvidersReaperIsDocumentedAsTheBackstop(t *testing.T) {
	require.Regexp(t, "reaper is .{0,12}backstop", flat(document(t, "docs/OPERATIONS.md")))
	require.Regexp(t, "reaper is a backstop, not the plan", flat(document(t, "docs/PROVIDERS.md")))
}

func TestS1_056_TheRiskPointsAreDocumented(t *testing.T) {
	retention := flat(section(t, "docs/OPERATIONS.md", "## Retention"))
	require.Contains(t, retention, "`AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS` | 0 |", "off by default")
	paths := flat(section(t, "AGENTS.md", "## The two cleanup paths of a sandbox"))
	require.Contains(t, paths, "`keep_alive` wins over the delay")
	require.Contains(t, paths, "Delay above 0")
	require.Contains(t, paths, "retried with backoff", "best effort, and yet nothing is lost")
}

func TestS1_058_TheInstallersOptionIsOutsideThisService(t *testing.T) {
	require.Regexp(t, "commercial installer .{0,30}has an option of its own .{0,80}outside this service", flat(section(t, "docs/OPERATIONS.md", "## Retention")))
}

func TestS1_059_AGENTSDescribesBothCleanupPaths(t *testing.T) {
	paths := section(t, "AGENTS.md", "## The two cleanup paths of a sandbox")
	require.Contains(t, paths, "**At once.**")
	require.Contains(t, paths, "**Later.**")
	require.Contains(t, paths, "sandbox_cleanup_due_at")
	for _, name := range regexp.MustCompile("`([a-z]+/[a-z_]+\\.go)`").FindAllStringSubmatch(paths, -1) {
		_, err := os.Stat(filepath.Join(root, name[1]))
		require.NoError(t, err, "AGENTS.md names a file that is not there")
	}
}

func TestS0_133_TheContractsAreDocumentedNotShared(t *testing.T) {
	require.Contains(t, document(t, "docs/PROVIDERS.md"), "## The contract of a provider")
	api := document(t, "docs/API.md")
	for _, route := range []string{"GET /api/storage", "POST /api/storage/reclaim", "/api/processes/{id}/output"} {
		require.Contains(t, api, route)
	}
}

func TestS0_005_TheCostOfPausedBoxesIsDocumented(t *testing.T) {
	require.Regexp(t, "storage is still billed", flat(document(t, "docs/OPERATIONS.md")))
}

func TestS1_063_TheRunnerHoldsTheCoverageFloor(t *testing.T) {
	runner := document(t, "tests/run.sh")
	require.Contains(t, runner, "readonly COVERAGE_FLOOR=76")
	require.Contains(t, runner, "-coverpkg=./...")
	require.Contains(t, document(t, "Makefile"), "test:\n\ttests/run.sh\n")
	require.Contains(t, document(t, ".ci/run"), "make ")
}

func TestC_002_TheModulesOfTheCardAreReallyUsed(t *testing.T) {
	gomod := document(t, "go.mod")
	used := map[string]bool{}
	for _, f := range code(t) {
		for _, path := range f.imports() {
			used[path] = true
		}
	}
	for _, mod := range []string{"github.com/uptrace/bun", "github.com/golang-migrate/migrate/v4", "modernc.org/sqlite", "github.com/lib/pq", "github.com/robfig/cron/v3"} {
		require.Regexp(t, `(?m)^\s*(require )?`+regexp.QuoteMeta(mod)+` v`, gomod)
		require.True(t, slices.ContainsFunc(sorted(used), func(path string) bool { return path == mod || strings.HasPrefix(path, mod+"/") }), mod)
	}
}

// eachEngine is in tests that run on both engines.
var eachEngine = regexp.MustCompile(`modelstest\.Each|Postgres`)

func TestC_010_TheServiceIsGoOnly(t *testing.T) {
	require.Regexp(t, `(?m)^module automation$`, document(t, "go.mod"))
	require.Regexp(t, `(?m)^go 1\.26`, document(t, "go.mod"))
	var found []string
	for _, path := range tracked(t) {
		if strings.HasPrefix(path, "router/preset/") || strings.HasPrefix(path, "tests/bench/") { // runs in boxes, or is measured against
			continue
		}
		if slices.Contains([]string{".py", ".ts", ".js", ".rb", ".java", ".c"}, filepath.Ext(path)) {
			found = append(found, path)
		}
	}
	requireNone(t, found, "code in other languages")
	for _, name := range []string{"models", "migrations"} {
		both := slices.ContainsFunc(packages(tested(t))[name], func(f source) bool { return eachEngine.MatchString(f.text) })
		require.True(t, both, "%s is tested on both engines", name)
	}
}

func TestLinksBetweenDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)
	var found []string
	for _, path := range tracked(t) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(document(t, path), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(path), m[1])); err != nil {
				found = append(found, path+": "+m[1])
			}
		}
	}
	requireNone(t, found, "links to files that are not there")
}

// TestDoorsAreTheDocumentedOnes does not go through them: make test is what is running.
func TestDoorsAreTheDocumentedOnes(t *testing.T) {
	makefile := document(t, "Makefile")
	for _, door := range []string{"build", "test", "bench", "lint", "generate"} {
		require.Contains(t, makefile, "\n"+door+":\n")
	}
	info, err := os.Stat(filepath.Join(root, ".ci/run"))
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&0o111, ".ci/run can be executed")
	out, err := exec.CommandContext(t.Context(), "bash", "-n", filepath.Join(root, "tests/run.sh")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
