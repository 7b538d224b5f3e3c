package tests

import (
	"fmt"
	"go/ast"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/tests/cloudstub"
)

type peerFault struct {
	fault string
	tests []string
}

// peerFaults are known faults of the Python service 1.26.0, by their numbers, and the tests that show them absent here. The
// ninth, that the sweep deletes a box which was resumed, is how it is meant: the due date is shown, and can be moved.
var peerFaults = map[int]peerFault{
	1:  {"a stamp is cleared although the deletion failed, and the box is forgotten", []string{"TestNoFaultOfAProviderLosesABoxDeletesItEarlyOrMakesAStormVolume", "TestRecordedScenariosAgainstTheBuiltProgram"}},
	2:  {"with delay 0 a box is deleted by one attempt that nothing remembers", []string{"TestS1_016_WithoutADelayTheBoxIsDeletedNotPaused", "TestMatrixAKillAtEveryTimeOfEveryPoint"}},
	3:  {"a callback before the box is stored leaks it", []string{"TestCallbackBeforeTheProviderNamedTheBox", "TestDispatch_CallbackBeforeTheCommandsIDIsStored"}},
	4:  {"a cancel before the box is stored leaks it", []string{"TestPeerDefect_04_NothingIsStartedForARunThatWasCancelled", "TestDispatch_CancelWhileCreateIsOnTheWire"}},
	5:  {"a crash between create and start leaks the box", []string{"TestDispatch_AfterACrash", "TestMatrixAKillAtEveryTimeOfEveryPoint"}},
	6:  {"an error while verifying ends the run without deciding its box", []string{"TestVerify_Outcomes", "TestRecordedScenariosAgainstTheBuiltProgram"}},
	7:  {"replicas sweep the same boxes", []string{"TestBR_01_TwoStoresSweepAndClaimEachDueBoxExactlyOnce", "TestBR_01_VolumeTwoProcessesDelete200DueBoxesOnceEach"}},
	8:  {"boxes are swept one after the other, 50 a minute", []string{"TestTenThousandBoxesAreDeletedWithinTwentySeconds", "TestC_005_S1_031_BacklogDrainsInBoundedBatches"}},
	10: {"a refused key is never renewed for a delete", []string{"TestARefusedKeyIsRenewedOnce", "TestAUserWhoLeftNeedsAttentionAndTheirBoxIsNotForgotten"}},
	11: {"a late callback stamps and pauses a box that is deleted", []string{"TestPeerDefect_11_ReconcilingABoxOrderedDeletedGivesNoStampAndNoSecondOrder"}},
	12: {"a deferred delete cannot be seen", []string{"TestS1_048_S1_051_APausedBoxIsResumedByHandAndShowsItsDueDate"}},
	13: {"requests wait while the watchdog calls a provider", []string{"TestPeerDefect_13_14_NoRequestWaitsForAProvider", "TestS1_054_NoTransactionIsOpenDuringHTTP"}},
	14: {"callbacks hold a connection while they call a provider", []string{"TestPeerDefect_13_14_NoRequestWaitsForAProvider"}},
	15: {"every download stalls the whole service", []string{"TestPeerDefect_15_DownloadsDoNotStallTheService"}},
	16: {"any number of runs is started at once, and none is taken up after a restart", []string{"TestDispatch_AtMostSoManyInFlight", "TestDispatch_StoppingGivesTheRunBack", "TestDispatch_AfterACrash"}},
	17: {"a key is minted for every operation", []string{"TestPeerDefect_17_OneKeyIsMintedForAUser"}},
	18: {"another organization's tarball can be read", []string{"TestEveryRouteAnswersTheWrongOrganizationAsForAnUnknownID", "TestOtherPeoplesTarballs", "TestDispatch_Tarballs"}},
	19: {"null for a column that needs a value is a server error", []string{"TestRecordedScenariosAgainstTheBuiltProgram"}},
	20: {"a failed upload into a box is ignored", []string{"TestRecordedScenariosAgainstTheBuiltProgram"}},
	21: {"schedules stand still when clocks go back", []string{"TestNextFire"}},
	22: {"a run by hand swallows a scheduled one", []string{"TestPeerDefect_22_AManualRunDoesNotSwallowAScheduledOne"}},
	23: {"above 50 automations schedules are late", []string{"TestSchedule_FiresSetBased"}},
	24: {"settings without effect", []string{"TestEveryNameIsReadOnce"}},
	25: {"who ends a run is decided by a read, not by the write", []string{"TestS1_057_ManyCallbacksAndTheWatchdogGiveOneTerminalWriteAndOneStamp", "TestAnOutcomeIsWrittenOnlyOverWhatWasVerified"}},
	26: {"a verification that fails for a while is repeated for ever", []string{"TestVerify_TransientErrorsHaveTheHardCap"}},
	27: {"what a late failed callback tells is lost", []string{"TestWhatALateFailedCallbackTellsIsKept"}},
	28: {"an unhealthy schedule is switched off without a trace", []string{"TestPeerDefect_28_AScheduleThatCannotBeEvaluatedIsDisabledWithReasonAndEvent"}},
	29: {"pages of runs overlap", []string{"TestRunsAreReadInTheirOrganizationNewestFirst"}},
	30: {"in local mode a cancel stops nothing", []string{"TestLocalMode_OnTheRealAgentServer", "TestLocalMode_CancelledReplacedAndTimedOutCommandsAreStopped", "TestLocalMode_WorkspacesOutliveTheirRunsByTheRetention"}},
	31: {"the runs of a deleted automation cannot be listed", []string{"TestRunsOfTheOrganization"}},
	32: {"presets do not keep the box of a conversation that goes on", []string{"TestPreset_ConversationsThatGoOnAreKept"}},
	33: {"340 MB of memory and five seconds to start, idle", []string{"TestPeerDefect_33_TheServiceIsSmall"}},
}

// registryGaps are those of the Python registry of conversation containers (agent server 1.58.2), by their numbers.
var registryGaps = []peerFault{
	{"idle containers are stopped one after the other", []string{"TestS3_001_S3_002_S3_009_ManyUnusedBoxesAreAllStopped", "TestBoxesAreAskedAndStoppedSideBySide"}},
	{"an access during a stop starts a second container on the workspace", []string{"TestS3_022_AnAccessDuringTheStopWaitsAndStartsAnew", "TestS3_021_S3_022_S3_024_VolumeAccessAndEvictionRace"}},
	{"a late detach takes a newer session's hold away", []string{"TestS3_018_ALateDetachNeverReleasesANewAttachment", "TestS3_018_WhoIsInAnOldStartHoldsNoNewOne"}},
	{"a command in a box does not hold it, and a status left by a crash holds it for ever", []string{"TestS3_003_S3_010_WhatWorksIsNotStopped", "TestAnAgentThatDiedWhileItRanDoesNotHoldItsBoxForEver"}},
	{"a container without a conversation is never stopped", []string{"TestS0_096_S3_001_S3_002_S3_008_S3_009_S3_015_S3_016_ManyUnusedConversationsAreEvictedAndComeBackAsTheyWere"}},
	{"slow starts hold up what has nothing to do with them", []string{"TestTwentyStartAtOnce", "TestPeerDefect_13_14_NoRequestWaitsForAProvider"}},
	{"a stopping service takes minutes", []string{"TestS3_014_TheRuntimesOfAPlaceAreSuspendedTogether"}},
	{"each request asks the engine first", []string{"TestABoxThatRunsIsEnteredWithoutACallToTheProvider"}},
	{"what goes through the proxy does not count as use", []string{"TestS3_004_S3_011_S3_018_EveryKindOfAccessStartsTheTTLAnew"}},
	{"an eviction loses what is on the container's own disk", []string{"TestRuntimes"}},
	{"what is known of an access outlives its box", []string{"TestAttachmentsOfAProcessAreOneRowUntilTheLastOneLeaves"}},
	{"a client that goes away leaves an attachment for ever", []string{"TestD12_AnAttachmentThatCouldNotBeRemovedIsRemovedLater", "TestProxyLeavesWhenTheCallerGoes"}},
}

func TestEveryFaultOfThePythonServiceHasATestThatShowsItAbsent(t *testing.T) {
	named := map[string]bool{}
	for _, f := range tested(t) {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				named[fn.Name.Name] = true
			}
		}
	}
	for n := 1; n <= 33; n++ {
		if n == 9 {
			continue
		}
		require.NotEmpty(t, peerFaults[n].tests, "fault %d", n)
		for _, name := range peerFaults[n].tests {
			require.True(t, named[name], "fault %d, %s: no test %s", n, peerFaults[n].fault, name)
		}
	}
	for n, gap := range registryGaps {
		for _, name := range gap.tests {
			require.True(t, named[name], "D%d, %s: no test %s", n+1, gap.fault, name)
		}
	}
}

// soon makes a request that must not wait for a provider, whose calls hang for half a minute.
func (c caller) soon(method, path string, body any, status int) {
	c.t.Helper()
	began := time.Now()
	c.call("tok-alice", method, path, body, status)
	require.Less(c.t, time.Since(began), 3*time.Second, "%s %s", method, path)
}

func TestPeerDefect_13_14_NoRequestWaitsForAProvider(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database []string) {
		c := newCaller(t, "delay", append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600")...)
		first, second, late := c.running("tok-alice", 600), c.running("tok-alice", 600), c.running("tok-alice", 1)
		for _, op := range []string{"get", "pause", "delete", "mint", "events", "bash_search", "server_info"} {
			c.stub.FailAlways(op, cloudstub.Fault{Hang: true})
		}
		done := object{"status": "COMPLETED", "conversation_id": "c-1"}
		c.soon(http.MethodPost, "/runs/"+first.text("id")+"/complete", done, http.StatusOK)
		require.True(t, c.stub.Wait(patience, func() bool { return len(c.stub.Calls("get", "pause", "bash_search")) > 0 }), "somebody waits for the provider")
		for range 5 {
			c.soon(http.MethodGet, "/runs/"+late.text("id"), nil, http.StatusOK)
			c.soon(http.MethodPatch, "/"+second.text("automation_id"), object{"description": "changed"}, http.StatusOK)
		}
		c.soon(http.MethodPost, "/runs/"+second.text("id")+"/complete", done, http.StatusOK)
		c.soon(http.MethodPost, "/runs/"+late.text("id")+"/cancel", nil, http.StatusOK)
		c.stub.Heal()
	})
}

func TestPeerDefect_15_DownloadsDoNotStallTheService(t *testing.T) {
	t.Parallel()
	c := newCaller(t, "cloud")
	c.stub.FailAlways("bash_search", cloudstub.Fault{Hang: true}) // no download ends
	a := c.call("tok-alice", http.MethodPost, "", object{
		"name": "x", "entrypoint": "python main.py", "tarball_path": "https://example.test/code.tar.gz", "timeout": 600,
		"trigger": object{"type": "cron", "schedule": "0 0 29 2 *"},
	}, http.StatusCreated)
	for range 20 {
		c.call("tok-alice", http.MethodPost, "/"+a.text("id")+"/dispatch", nil, http.StatusCreated)
	}
	require.True(t, c.stub.Wait(patience, func() bool { return len(c.stub.Calls("bash_start")) >= 20 }), "all of them are downloading")
	for range 50 {
		began := time.Now()
		status, _, _ := c.send(http.MethodGet, "/health", nil, nil)
		require.Equal(t, http.StatusOK, status)
		require.Less(t, time.Since(began), 2*time.Second)
	}
	c.stub.Heal()
}

func TestPeerDefect_17_OneKeyIsMintedForAUser(t *testing.T) {
	t.Parallel()
	c := newCaller(t, "cloud")
	for range 3 {
		run := c.running("tok-alice", 600)
		c.call("tok-alice", http.MethodPost, "/runs/"+run.text("id")+"/complete", object{"status": "COMPLETED"}, http.StatusOK)
	}
	gone(c.player)
	require.Len(t, c.stub.Calls("mint"), 1)
	c.s.stop()
	c.s.launch()
	run := c.running("tok-alice", 600)
	c.call("tok-alice", http.MethodPost, "/runs/"+run.text("id")+"/cancel", nil, http.StatusOK)
	gone(c.player)
	require.Len(t, c.stub.Calls("mint"), 1, "and it is kept over a restart")
}

func TestPeerDefect_33_TheServiceIsSmall(t *testing.T) {
	s := start(t)
	process := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
	status, err := os.ReadFile(process + "status")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(status), "VmRSS:")
	require.True(t, found)
	resident, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	require.Less(t, resident, 150<<10, "KiB resident, idle")
	stat, err := os.ReadFile(process + "stat")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	require.Less(t, user+system, 300, "hundredths of a second of work until it serves")
}
