package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"automation/loop"
	"automation/models"
	"automation/sandbox"
)

// whole is a registry with everything in it, for one backend that it serves and one that it only knows.
func whole(t *testing.T, census models.Census) *Metrics {
	t.Helper()
	m := New(Config{Version: "1", Commit: "c", Backends: []string{"near", "far"}, Serves: []string{"near"}, Now: time.Now,
		Slots: map[string]int{"near": 4}, Prices: map[string]Price{"near": {Awake: 0.5, Paused: 0.125}}})
	m.WatchState(func(context.Context) (models.Census, error) { return census, nil })
	m.WatchLoops(func() []loop.Status { return []loop.Status{{Name: "janitor", Every: time.Minute, Began: time.Now()}} })
	m.Route("GET", "/v1/runs/{id}")
	m.Route("POST", "/v1/")
	return m
}

// families gathers ours by name.
func families(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := m.registry.Gather()
	require.NoError(t, err)
	ours := map[string]*dto.MetricFamily{}
	for _, f := range all {
		if strings.HasPrefix(f.GetName(), "automation_") {
			ours[f.GetName()] = f
		}
	}
	return ours
}

// values are the values of a family's labels.
func values(f *dto.MetricFamily) map[string][]string {
	all := map[string][]string{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if !slices.Contains(all[l.GetName()], l.GetValue()) {
				all[l.GetName()] = append(all[l.GetName()], l.GetValue())
			}
		}
	}
	for name := range all {
		slices.Sort(all[name])
	}
	return all
}

// value is one sample: a counter's or gauge's value, or how often a histogram was observed.
func value(t *testing.T, m *Metrics, name string, labels ...string) float64 {
	t.Helper()
	f := families(t, m)[name]
	require.NotNil(t, f, name)
	for _, sample := range f.GetMetric() {
		var have []string
		for _, l := range sample.GetLabel() {
			have = append(have, l.GetName()+"="+l.GetValue())
		}
		if slices.Equal(have, labels) {
			return sample.GetCounter().GetValue() + sample.GetGauge().GetValue() + float64(sample.GetHistogram().GetSampleCount())
		}
	}
	require.Fail(t, "no such sample", "%s %v", name, labels)
	return 0
}

// described are labels whose values depend on the deployment, and what the page says of them.
var described = map[string]string{
	"provider": "the backend's name", "loop": "the duty's name", "route": "the route's template, or unmatched", "method": "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, other",
	"code": "the status", "version": "", "commit": "", "go_version": "",
}

// row is a family as the page lists it.
func row(f *dto.MetricFamily) string {
	labels := values(f)
	var names []string
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range labels {
			if !yield(name) {
				return
			}
		}
	}) {
		text, free := described[name]
		if !free {
			text = strings.Join(labels[name], ", ")
		}
		if text != "" {
			text = " (" + text + ")"
		}
		names = append(names, "`"+name+"`"+text)
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(names, "; "), f.GetHelp())
}

//go:generate env UPDATE_DOCS=1 go test -run TestThePageListsEveryFamilyWithItsLabels .

// tableHead begins the table of metrics; an empty line ends it.
const tableHead = "| metric | type | labels | meaning |\n|---|---|---|---|\n"

func TestThePageListsEveryFamilyWithItsLabels(t *testing.T) {
	page, err := os.ReadFile("../docs/OPERATIONS.md")
	require.NoError(t, err)
	m := whole(t, models.Census{})
	m.Request(t.Context(), "/v1", "POST", 201, time.Second)
	var rows []string
	for _, f := range families(t, m) {
		rows = append(rows, row(f))
	}
	slices.Sort(rows)
	want := strings.Join(rows, "\n") + "\n"
	if os.Getenv("UPDATE_DOCS") != "" {
		before, rest, ok := strings.Cut(string(page), tableHead)
		require.True(t, ok)
		_, after, _ := strings.Cut(rest, "\n\n")
		require.NoError(t, os.WriteFile("../docs/OPERATIONS.md", []byte(before+tableHead+want+"\n"+after), 0o644))
		return
	}
	var listed []string
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `automation_") {
			listed = append(listed, strings.TrimSuffix(line, "\n"))
		}
	}
	require.Equal(t, want, strings.Join(listed, "\n")+"\n", "UPDATE_DOCS=1 writes it")
}

func TestNamesHaveTheirPrefixAndUnit(t *testing.T) {
	m := whole(t, models.Census{})
	m.Request(t.Context(), "/v1", "POST", 201, time.Second)
	for name, f := range families(t, m) {
		require.NotEmpty(t, f.GetHelp(), name)
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			require.True(t, strings.HasSuffix(name, "_total"), name)
		case dto.MetricType_HISTOGRAM:
			require.True(t, strings.HasSuffix(name, "_seconds"), name)
		default:
			require.False(t, strings.HasSuffix(name, "_total"), name)
		}
	}
}

func TestLabelsAreFromClosedSetsWhateverIsReported(t *testing.T) {
	odd := "odd-" + uuid.NewString()
	strange := models.TriggerSource(odd)
	feed := func(m *Metrics, n int) {
		word := fmt.Sprint(odd, n)
		m.RunEnded(models.RunEnd{Run: &models.Run{Status: models.RunStatus(word), TriggerSource: &strange, ErrorDetail: &word}})
		m.ProviderCall(word)(word, time.Second, errors.New(word))
		m.BoxDeleted(&models.Sandbox{Backend: word, OrderedBy: word, OrderReason: word}, errors.New(word))
		m.Swept(word, time.Second, 1, 1)
		m.Request(t.Context(), "/"+word, word, 1000+n, time.Second)
	}
	m := whole(t, models.Census{
		Boxes:    []models.BoxCount{{Backend: odd, Observed: models.SeenRunning, N: 3}},
		Cleanups: map[string]models.Cleanup{odd: {Pending: 1}},
	})
	feed(m, 0)
	before := 0
	for _, f := range families(t, m) {
		before += len(f.GetMetric())
	}
	for n := range 50 {
		feed(m, n)
	}
	after := 0
	for name, f := range families(t, m) {
		after += len(f.GetMetric())
		for label, all := range values(f) {
			for _, v := range all {
				require.NotContains(t, v, "odd-", "%s %s", name, label)
			}
		}
	}
	require.Equal(t, before, after, "no report makes a new series")
}

func TestEveryCounterStartsAtZero(t *testing.T) {
	m := whole(t, models.Census{})
	for name, labels := range map[string][]string{
		"automation_runs_finished_total":             {"outcome=timed_out", "trigger=cron"},
		"automation_schedule_missed_total":           {"reason=down"},
		"automation_sandbox_operations_total":        {"operation=delete", "provider=near", "result=rate_limited"},
		"automation_sandbox_deletes_total":           {"provider=near", "reason=orphan", "result=error"},
		"automation_sweep_items_total":               {"kind=due", "result=failed"},
		"automation_sandboxes":                       {"kept=true", "provider=near", "state=missing"},
		"automation_http_requests_total":             {"code=200", "method=POST", "route=/v1"},
		"automation_runs":                            {"status=skipped"},
		"automation_sandbox_cleanup_overdue":         {"provider=near"},
		"automation_loop_iterations_total":           {"loop=janitor", "result=error"},
		"automation_runs_reconciled_total":           {"from=timed_out", "to=completed"},
		"automation_sweep_backlog":                   {"kind=orphan"},
		"automation_run_start_delay_seconds":         nil,
		"automation_migration_dirty":                 nil,
		"automation_schedule_fires_total":            {"result=created"},
		"automation_sweep_duration_seconds":          {"kind=events"},
		"automation_run_duration_seconds":            {"outcome=failed"},
		"automation_sandbox_orphans":                 {"provider=near"},
		"automation_sandbox_cleanup_pending":         {"provider=near"},
		"automation_run_queue_seconds":               nil,
		"automation_sandbox_age_at_deletion_seconds": {"provider=near", "reason=due"},
	} {
		require.Zero(t, value(t, m, name, labels...), name)
	}
}

func TestRunsAreCounted(t *testing.T) {
	m := whole(t, models.Census{})
	cron, now := models.TriggerCron, time.Now()
	began := now.Add(-time.Minute)
	text := models.TimedOutPrefix + "too long"
	m.RunEnded(models.RunEnd{Run: &models.Run{Status: models.RunFailed, ErrorDetail: &text, TriggerSource: &cron, StartedAt: &began, CompletedAt: &now}})
	m.RunEnded(models.RunEnd{Run: &models.Run{Status: models.RunCompleted}, Reconciled: true})
	m.RunEnded(models.RunEnd{Run: &models.Run{Status: models.RunCancelled}}) // never started: no duration
	require.InDelta(t, 1, value(t, m, "automation_runs_finished_total", "outcome=timed_out", "trigger=cron"), 0)
	require.InDelta(t, 1, value(t, m, "automation_run_duration_seconds", "outcome=timed_out"), 0)
	require.InDelta(t, 1, value(t, m, "automation_runs_reconciled_total", "from=timed_out", "to=completed"), 0)
	require.Zero(t, value(t, m, "automation_runs_finished_total", "outcome=completed", "trigger=manual"))
	require.InDelta(t, 1, value(t, m, "automation_runs_finished_total", "outcome=cancelled", "trigger=manual"), 0)
	require.Zero(t, value(t, m, "automation_run_duration_seconds", "outcome=cancelled"))

	m.RunStarted(&models.Run{CreatedAt: began, StartedAt: &now, ScheduledFor: &began})
	require.InDelta(t, 1, value(t, m, "automation_run_queue_seconds"), 0)
	require.InDelta(t, 1, value(t, m, "automation_run_start_delay_seconds"), 0)
}

func TestSchedulesAreCounted(t *testing.T) {
	m := whole(t, models.Census{})
	was, later := time.Now().Add(-time.Hour), time.Now()
	fire := func(at *time.Time, disable string) models.Fire {
		return models.Fire{AutomationID: uuid.New(), Was: was, At: at, Disable: disable}
	}
	punctual, late, skipped, repeated := fire(&was, ""), fire(&later, ""), fire(&was, ""), fire(&was, "")
	m.SchedulesFired([]models.Fire{punctual, late, skipped, repeated, fire(nil, ""), fire(&was, "no such zone")}, []*models.Run{
		{AutomationID: punctual.AutomationID, Status: models.RunPending}, {AutomationID: late.AutomationID, Status: models.RunPending},
		{AutomationID: skipped.AutomationID, Status: models.RunSkipped},
	})
	for result, n := range map[string]float64{"created": 2, "skipped": 1, "repeated": 1} {
		require.InDelta(t, n, value(t, m, "automation_schedule_fires_total", "result="+result), 0, result)
	}
	for _, reason := range missed {
		require.InDelta(t, 1, value(t, m, "automation_schedule_missed_total", "reason="+reason), 0, reason)
	}
}

func TestCallsAndDeletesAreCounted(t *testing.T) {
	m := whole(t, models.Census{})
	for result, err := range map[string]error{
		"ok": nil, "not_found": sandbox.ErrGone, "refused": sandbox.ErrRefused, "timeout": context.DeadlineExceeded,
		"rate_limited": &sandbox.ProviderError{Status: 429}, "error": &sandbox.ProviderError{Status: 500},
	} {
		if err != nil {
			err = fmt.Errorf("wrapped: %w", err)
		}
		m.ProviderCall("near")("Suspend", time.Second, err)
		require.InDelta(t, 1, value(t, m, "automation_sandbox_operations_total", "operation=pause", "provider=near", "result="+result), 0, result)
	}
	for reason, by := range map[string][2]string{
		"due": {"janitor", "due"}, "orphan": {"orphans", "no row owned it"}, "cancelled": {"user:1", "cancelled"}, "manual": {"user:1", "by hand"},
		"policy": {"settler", "failed"}, "immediate": {"callback", "callback"},
	} {
		b := &models.Sandbox{Backend: "near", OrderedBy: by[0], OrderReason: by[1], CreatedAt: time.Now().Add(-time.Hour)}
		m.BoxDeleted(b, errors.New("away"))
		m.BoxDeleted(b, nil)
		require.InDelta(t, 1, value(t, m, "automation_sandbox_deletes_total", "provider=near", "reason="+reason, "result=error"), 0, reason)
		require.InDelta(t, 1, value(t, m, "automation_sandbox_age_at_deletion_seconds", "provider=near", "reason="+reason), 0, reason)
	}
	m.Swept("events", time.Second, 7, 0)
	m.Swept("workspace", time.Second, 3, 2)
	for labels, n := range map[[2]string]float64{
		{"kind=due", "result=deleted"}: 1, {"kind=due", "result=failed"}: 1, {"kind=orphan", "result=deleted"}: 1, {"kind=events", "result=deleted"}: 7,
		{"kind=workspace", "result=deleted"}: 3, {"kind=workspace", "result=failed"}: 2,
	} {
		require.InDelta(t, n, value(t, m, "automation_sweep_items_total", labels[:]...), 0, "%v", labels)
	}
}

func TestWhatIsDoneInBoxesIsCounted(t *testing.T) {
	m := whole(t, models.Census{})
	m.Prepared(sandbox.StepReclaim, "ok", 700, time.Second)
	m.Prepared(sandbox.StepReclaim, "failed", 0, time.Second)
	m.Prepared(sandbox.StepExport, "ok", 50, time.Second)
	m.Prepared(sandbox.StepOutput, "ok", 9, time.Second)
	m.ReclaimedByHand(300, time.Second, nil)
	m.ReclaimedByHand(0, time.Second, errors.New("no"))
	require.InDelta(t, 1, value(t, m, "automation_reclaim_passes_total", "result=ok", "trigger=stop"), 0)
	require.InDelta(t, 1, value(t, m, "automation_reclaim_passes_total", "result=failed", "trigger=manual"), 0)
	require.InDelta(t, 700, value(t, m, "automation_reclaim_freed_bytes_total", "trigger=stop"), 0)
	require.InDelta(t, 300, value(t, m, "automation_reclaim_freed_bytes_total", "trigger=manual"), 0)
	require.InDelta(t, 2, value(t, m, "automation_reclaim_pass_duration_seconds", "trigger=stop"), 0)
	require.InDelta(t, 1, value(t, m, "automation_exports_total", "result=ok"), 0)
	require.InDelta(t, 50, value(t, m, "automation_export_bytes_total"), 0)
}

func TestS1_048_SlotsAndCostsAreShownByWhatIsAwakeAndByThePlanThatIsConfigured(t *testing.T) {
	census := models.Census{Boxes: []models.BoxCount{
		{Backend: "near", Observed: models.SeenRunning, N: 2}, {Backend: "near", Observed: models.SeenRunning, Kept: true, N: 1},
		{Backend: "near", Observed: models.SeenProvisioning, N: 1}, {Backend: "near", Observed: models.SeenDeleting, N: 1},
		{Backend: "near", Observed: models.SeenSuspended, N: 8}, {Backend: "near", Observed: models.SeenMissing, N: 9},
		{Backend: "near", Observed: models.SeenFailed, N: 9}, {Backend: "far", Observed: models.SeenRunning, N: 7},
	}}
	m := whole(t, census)
	require.InDelta(t, 5, value(t, m, "automation_sandbox_slots", "kind=used", "provider=near"), 0, "what is paused takes none")
	require.InDelta(t, 4, value(t, m, "automation_sandbox_slots", "kind=limit", "provider=near"), 0)
	for state, cost := range map[string]float64{"running": 1.5, "provisioning": 0.5, "deleting": 0.5, "suspended": 1} {
		require.InDelta(t, cost, value(t, m, "automation_sandbox_estimated_cost_per_hour", "provider=near", "state="+state), 0, state)
	}
	bare := New(Config{Backends: []string{"near"}, Serves: []string{"near"}, Now: time.Now})
	bare.WatchState(func(context.Context) (models.Census, error) { return census, nil })
	require.Equal(t, map[string][]string{"kind": {"used"}, "provider": {"near"}}, values(families(t, bare)["automation_sandbox_slots"]), "no limit is made up")
	require.NotContains(t, families(t, bare), "automation_sandbox_estimated_cost_per_hour", "and no price")
}

func TestTheStateIsReadOnceInAWhileAndNotShownWhenItCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, took, away := 0, time.Duration(0), error(nil)
		m := New(Config{Backends: []string{"near"}, Serves: []string{"near"}, Now: time.Now})
		m.WatchState(func(context.Context) (models.Census, error) {
			reads++
			<-time.After(took)
			return models.Census{
				Runs:     map[models.RunStatus]int{models.RunFailed: reads},
				Boxes:    []models.BoxCount{{Backend: "near", Observed: models.SeenSuspended, Kept: true, N: 2, Orphans: 1}},
				Held:     map[models.BoxState]int64{{Backend: "near", Observed: models.SeenSuspended}: 4096},
				Cleanups: map[string]models.Cleanup{"near": {Pending: 3, Overdue: 2, OldestOverdue: time.Hour}}, Migration: 5, Dirty: true,
			}, away
		})
		for range 10 {
			require.InDelta(t, 1, value(t, m, "automation_runs", "status=failed"), 0)
		}
		require.InDelta(t, 2, value(t, m, "automation_sandboxes", "kept=true", "provider=near", "state=suspended"), 0)
		require.InDelta(t, 4096, value(t, m, "automation_sandbox_storage_bytes", "provider=near", "state=suspended"), 0)
		require.InDelta(t, 0, value(t, m, "automation_sandbox_storage_bytes", "provider=near", "state=running"), 0)
		require.InDelta(t, 3600, value(t, m, "automation_sandbox_cleanup_oldest_overdue_seconds", "provider=near"), 0)
		require.InDelta(t, 2, value(t, m, "automation_sweep_backlog", "kind=due"), 0)
		require.InDelta(t, 1, value(t, m, "automation_sweep_backlog", "kind=orphan"), 0)
		require.InDelta(t, 5, value(t, m, "automation_migration_version"), 0)
		require.InDelta(t, 1, value(t, m, "automation_migration_dirty"), 0)
		require.Equal(t, 1, reads)
		<-time.After(censusEvery)
		took = time.Second
		require.InDelta(t, 2, value(t, m, "automation_runs", "status=failed"), 0)
		<-time.After(99 * time.Second)
		require.InDelta(t, 2, value(t, m, "automation_runs", "status=failed"), 0, "a slow one is shown for longer")
		<-time.After(2 * time.Second)
		away = errors.New("away")
		_, err := m.registry.Gather()
		require.ErrorContains(t, err, "away")
	})
}

func TestLoopsAreShown(t *testing.T) {
	m := New(Config{Now: time.Now})
	last := time.Now().Add(-90 * time.Second)
	m.WatchLoops(func() []loop.Status {
		return []loop.Status{{Name: "janitor", Every: time.Minute, Passes: 5, Failures: 2, LastSuccess: last}, {Name: "new"}}
	})
	require.InDelta(t, 3, value(t, m, "automation_loop_iterations_total", "loop=janitor", "result=ok"), 0)
	require.InDelta(t, 2, value(t, m, "automation_loop_iterations_total", "loop=janitor", "result=error"), 0)
	require.InDelta(t, 30, value(t, m, "automation_loop_lag_seconds", "loop=janitor"), 5)
	require.InDelta(t, float64(last.Unix()), value(t, m, "automation_loop_last_success_timestamp_seconds", "loop=janitor"), 1)
	require.Len(t, families(t, m)["automation_loop_lag_seconds"].GetMetric(), 1, "one that has not begun has no lag")
}

func TestScrapesAreAnsweredInTheFormatThatIsAskedFor(t *testing.T) {
	m := whole(t, models.Census{})
	id, err := trace.TraceIDFromHex("0af7651916cd43dd8448eb211c80319c")
	require.NoError(t, err)
	sampled := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	}))
	m.Request(sampled, "/v1/runs/{id}", "GET", 200, time.Second)
	scrape := func(accept string) (string, string) {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, r)
		require.Equal(t, 200, w.Code)
		body, err := io.ReadAll(w.Body)
		require.NoError(t, err)
		return w.Header().Get("Content-Type"), string(body)
	}
	kind, text := scrape("application/openmetrics-text; version=1.0.0")
	require.Contains(t, kind, "application/openmetrics-text")
	require.True(t, strings.HasSuffix(text, "# EOF\n"))
	require.Contains(t, text, `# {trace_id="0af7651916cd43dd8448eb211c80319c"} 1.0`)
	kind, text = scrape("*/*")
	require.Contains(t, kind, "text/plain")
	require.Contains(t, text, "automation_build_info")
	require.Contains(t, text, "go_goroutines")
}
