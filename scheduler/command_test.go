package scheduler

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

var recordedRun = uuid.MustParse("9d7095ec-b6b4-4c4b-b9af-294b670d80f7")

func TestStartCommand_IsTheContractsText(t *testing.T) {
	want := `set +x && trap 'rm -f '\''/tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz.env'\''' EXIT && ` +
		`chmod 600 '/tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz.env' && ` +
		`. '/tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz.env' && ` +
		`rm -f '/tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz.env' && mkdir -p /workspace/project && ` +
		`tar xzf /tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz -C /workspace/project && ` +
		`rm -f /tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz && cd /workspace/project && ` +
		`([ ! -f setup.sh ] || bash setup.sh) && python main.py`
	require.Equal(t, want, startCommand(contractWorkspace(recordedRun), "python main.py"))
	require.Contains(t, want, sandbox.StartMarker(recordedRun))
}

func TestDownloadCommand_IsTheContractsText(t *testing.T) {
	want := `curl -fsSL --max-filesize 104857600 --max-time 120 -o /tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz ` +
		`'https://example.test/code.tar.gz'`
	got := downloadCommand(contractWorkspace(recordedRun), "https://example.test/code.tar.gz", 104857600, 2*time.Minute)
	require.Equal(t, want, got)
	require.NotContains(t, got, sandbox.StartMarker(recordedRun))
	require.Contains(t, downloadCommand(contractWorkspace(recordedRun), `https://x/'; reboot; '`, 1, time.Second), `'https://x/'\''; reboot; '\'''`)
}

func TestLocalWorkspace_IsTheContractsPath(t *testing.T) {
	w := localWorkspace(recordedRun, "/workspace")
	require.Equal(t, "/workspace/automation-runs/9d7095ec-b6b4-4c4b-b9af-294b670d80f7", w.dir)
	require.Equal(t, "/tmp/automation-9d7095ec-b6b4-4c4b-b9af-294b670d80f7.tar.gz.env", w.env())
}

// The line runs in a real shell, in a home with a space in its name: setup.sh first, the environment with every odd
// character, and neither environment file nor tarball left behind.
func TestStartCommand_RunsInAShell(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a home")
	w := homeWorkspace(recordedRun, home)
	require.NoError(t, os.MkdirAll(filepath.Dir(w.tarball), 0o755))

	code := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(code, "setup.sh"), []byte("echo set up > done"), 0o600))
	out, err := exec.Command("tar", "czf", w.tarball, "-C", code, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	odd := "it's \"$HOME\" `id`\nsecond\\line"
	require.NoError(t, os.WriteFile(w.env(), []byte(variables{"ODD": odd, "AUTOMATION_NAME": "a"}.file()), 0o600))

	cmd := exec.Command("/bin/sh", "-c", startCommand(w, `cat done && printf %s "$ODD"`))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, startCommand(w, ""), sandbox.StartMarker(recordedRun))
	require.Equal(t, "set up\n"+odd, string(out))
	require.NoFileExists(t, w.env())
	require.NoFileExists(t, w.tarball)
}

func TestCommonVariables(t *testing.T) {
	model, source := "m-1", models.TriggerManual
	a := &models.Automation{
		ID: uuid.New(), OrgID: uuid.New(), UserID: uuid.New(), Name: "nightly", Model: &model,
		Trigger: json.RawMessage(`{"type":"cron","schedule":"0 0 29 2 *","timezone":"UTC"}`),
	}
	run := &models.Run{ID: recordedRun, TriggerSource: &source, Status: models.RunRunning}
	v := commonVariables(run, a, "http://automation.test/api/automation")
	require.Equal(t, "http://automation.test/api/automation/v1/runs/"+recordedRun.String()+"/complete", v["AUTOMATION_CALLBACK_URL"])
	require.Equal(t, "http://automation.test/api/automation/v1/runs/"+recordedRun.String()+"/phase", v["AUTOMATION_PHASE_URL"])
	require.Equal(t, "cron", v["AUTOMATION_TRIGGER_TYPE"])
	require.Equal(t, "manual", v["AUTOMATION_TRIGGER_SOURCE"])
	require.Equal(t, "m-1", v["AUTOMATION_MODEL"])
	require.JSONEq(t, `{"trigger":"cron","trigger_payload":{"type":"cron","schedule":"0 0 29 2 *","timezone":"UTC"},"automation_id":"`+
		a.ID.String()+`","automation_name":"nightly","model":"m-1"}`, v["AUTOMATION_EVENT_PAYLOAD"])
	require.Equal(t, "automation,automation.trigger:cron,automation.run_trigger:manual", v["OPENHANDS_OBSERVABILITY_TAGS"])
	require.NotContains(t, v, "AUTOMATION_CONVERSATION_ID")
}
