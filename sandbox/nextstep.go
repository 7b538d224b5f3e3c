package sandbox

import (
	"slices"
	"strings"
	"time"

	"automation/models"
)

// Step is what the settler does next with a box. Its text is the name in `tried` and in events.
type Step string

// The steps.
const (
	StepRest        Step = "rest"          // nothing to do: next_step_at becomes NULL
	StepWait        Step = "wait"          // look again at Next.At
	StepClose       Step = "close"         // nothing can exist at the provider: deleted without a call
	StepInspect     Step = "inspect"       // ask the provider
	StepCreate      Step = "create"        // provider call, for the box of a conversation; that of a run is created by dispatch
	StepSearch      Step = "search"        // look a create up whose answer was lost
	StepUnaccounted Step = "unaccounted"   // a lost create that has no label to look it up by: shown
	StepAccount     Step = "account"       // find out which box of the user's it made, if that can be told
	StepQuiesce     Step = "quiesce"       // let the command that called back end, or stop it
	StepOutput      Step = "output"        // store output, exit code and finish response
	StepReclaim     Step = "reclaim"       // let the box free rebuildable files
	StepExport      Step = "export"        // store the history
	StepWake        Step = "wake"          // provider call: a suspended box runs for its export, and goes then
	StepLost        Step = "history lost"  // it goes without an export: written down before
	StepSuspend     Step = "suspend"       // provider call
	StepResume      Step = "resume"        // provider call
	StepDelete      Step = "delete"        // provider call
	StepAwait       Step = "await"         // a suspend may be on its way to the provider: see what comes of it before a resume
	StepGiveWay     Step = "give way"      // a user is in the box, or may be: the suspend is not repeated
	StepOrder       Step = "order deleted" // a failed box is of no use to anybody

	// Only in `tried`, never a step: the box cannot be reached, so that no more preparing steps are made; a suspend was called
	// for and has not been seen, so that the next one repeats it, and a resume waits for it.
	markUnreachable Step = "unreachable"
	markSuspendSent Step = models.MarkSuspendSent
)

// Reason codes of needs_attention.
const (
	AttentionFailed       = "box_failed"
	AttentionUnaccounted  = "unaccounted"
	AttentionRefused      = "credential_refused"
	AttentionQuota        = "quota_used_up"
	AttentionDelete       = "delete_fails"
	AttentionResume       = "resume_failed"
	AttentionSuspend      = "suspend_given_up"
	AttentionUnsuspending = "backend_cannot_suspend"
	AttentionHistoryLost  = models.AttentionHistoryLost
)

// Bounds of design sections 4 and 5.
const (
	PrepareBudget    = 60 * time.Second // of all steps before a suspend or delete together
	prepareShort     = 15 * time.Second // the same for delay 0 and cancel
	attachedMost     = time.Hour        // how long an attachment holds a suspend up
	attachedLook     = 30 * time.Second
	unreadableMost   = 15 * time.Minute // how long a suspend is repeated while nobody can say whether the box is in use
	resumeMost       = 15 * time.Minute // how long a resume is repeated: nobody waits longer
	activityOwnNoise = 2 * time.Second  // clocks differ, idle times are rounded
)

// searchAfter is when a lost create is looked up, counted from the end of the call.
var searchAfter = []time.Duration{0, time.Minute, 5 * time.Minute, 15 * time.Minute}

// Facts is what NextStep is told beside the row.
type Facts struct {
	Now          time.Time
	Capabilities Capabilities
	Settings     Settings
	Run          *models.Run // nil: the box has none
	Newest       bool        // the box is its run's newest: the run's command is in it
	KeepAlive    bool        // of the automation
	Attached     bool        // a live attachment exists
	// What this claim has done or seen so far.
	Looked       bool       // Inspect has answered
	Blind        bool       // Inspect has failed, and must not hold up a delete
	Quiesced     bool       // the command has ended or may go on
	LastActivity *time.Time // read before a suspend is repeated, or an idle box is suspended; nil: unreadable
}

// Next is a step and, where it is StepWait, when.
type Next struct {
	Step      Step
	At        time.Time
	Attention string // needs_attention, where the step changes it
	Why       string // for the event
}

// NextStep decides what is done next with a box: a pure table over the pairs of desired and observed state (design
// section 4).
func NextStep(b *models.Sandbox, f Facts) Next {
	if b.Observed == models.SeenDeleted {
		return Next{Step: StepRest}
	}
	if len(b.Open()) == 0 {
		return nextUnnamed(b, f)
	}
	switch b.Observed {
	case models.SeenDeleted:
		return Next{Step: StepRest}
	case models.SeenMissing:
		if b.Desired == models.WantDeleted {
			return nextGone(b, f)
		}
		return nextSeen(b, f, Next{Step: StepRest})
	case models.SeenDeleting:
		return Next{Step: StepInspect}
	case models.SeenProvisioning:
		return nextProvisioning(b, f)
	case models.SeenRunning, models.SeenSuspended, models.SeenFailed:
		return nextKnown(b, f)
	}
	return Next{Step: StepRest}
}

// nextKnown is for a box that the provider has, in a state that lasts.
func nextKnown(b *models.Sandbox, f Facts) Next {
	if f.Attached && evicting(b) {
		return Next{Step: StepGiveWay, Why: "somebody came in"}
	}
	if at, held := attachedUntil(b, f); held {
		return Next{Step: StepWait, At: at} // without a look: that may count as activity
	}
	if mustLook(b, f) {
		older := b.ObservedAt == nil || b.ObservedAt.Before(b.OrderedAt)
		if older && b.Desired == models.WantRunning && tried(b, markSuspendSent) {
			return Next{Step: StepAwait}
		}
		return Next{Step: StepInspect}
	}
	if b.Observed == models.SeenFailed {
		return nextFailed(b, f)
	}
	switch b.Desired {
	case models.WantDeleted:
		return nextDelete(b, f)
	case models.WantSuspended:
		return nextSuspend(b, f)
	default:
		return nextRun(b, f)
	}
}

// mustLook reports whether the row's observation is older than the order, or than the time at which it was to be looked at.
// So a repeated suspend or resume is preceded by a look; a repeated delete is not.
func mustLook(b *models.Sandbox, f Facts) bool {
	if f.Looked || f.Blind {
		return false
	}
	if b.ObservedAt == nil || b.ObservedAt.Before(b.OrderedAt) || evicting(b) {
		return !spent(b, f)
	}
	repeats := b.Desired != models.WantDeleted || patient(b, f) && wantsExport(b, f)
	return repeats && b.NextStepAt != nil && b.ObservedAt.Before(*b.NextStepAt)
}

// spent reports whether a box that was suspended is to go and no look at it could change a step: all its output is stored and
// it holds no history that we are to keep. A sweep of many such boxes costs one call each less.
func spent(b *models.Sandbox, f Facts) bool {
	if b.Desired != models.WantDeleted || b.Observed != models.SeenSuspended || b.ObservedAt == nil || mayHoldHistory(b, f) {
		return false
	}
	return f.Run != nil && (f.Run.StartingAt == nil || f.Run.OutputAt != nil && f.Run.ExitCode != nil)
}

func nextSeen(b *models.Sandbox, f Facts, otherwise Next) Next {
	if mustLook(b, f) {
		return Next{Step: StepInspect}
	}
	return otherwise
}

// nextUnnamed is for a box of which no open identity is known.
func nextUnnamed(b *models.Sandbox, f Facts) Next {
	if len(b.Identities) > 0 { // every one was shown gone
		if b.Desired == models.WantDeleted {
			return Next{Step: StepClose, Why: "every identity is gone"}
		}
		return nextSeen(b, f, Next{Step: StepRest})
	}
	if at, waits := candidatesAt(b, f); waits {
		if at.After(f.Now) {
			return Next{Step: StepWait, At: at}
		}
		return Next{Step: StepAccount}
	}
	if b.Observed != models.SeenProvisioning {
		return Next{Step: StepRest}
	}
	if b.Desired != models.WantDeleted && f.Run != nil && !f.Run.Status.Terminal() {
		return Next{Step: StepRest} // dispatch decides about the attempt
	}
	if b.CreateSentAt == nil {
		return nextUnsent(b)
	}
	if !f.Capabilities.List || !f.Capabilities.Labels {
		return Next{Step: StepUnaccounted}
	}
	if at := searchAt(b, f.Now); at.After(f.Now) {
		return Next{Step: StepWait, At: at}
	}
	return Next{Step: StepSearch}
}

// nextUnsent is for a box that no provider was asked for.
func nextUnsent(b *models.Sandbox) Next {
	switch {
	case b.CreatedBy != models.CreatedByRuntime || b.Desired == models.WantDeleted:
		return Next{Step: StepClose, Why: "create was never sent"}
	case b.Desired == models.WantRunning:
		return Next{Step: StepCreate}
	}
	return Next{Step: StepRest}
}

// searchAt is when a lost create is looked up next.
func searchAt(b *models.Sandbox, now time.Time) time.Time {
	if b.CreateEndedAt == nil {
		return now // the caller died with the call: the lease's end, which this claim waited for
	}
	return b.CreateEndedAt.Add(searchAfter[min(b.Searches, len(searchAfter)-1)])
}

func nextProvisioning(b *models.Sandbox, f Facts) Next {
	switch {
	case b.Desired == models.WantSuspended && b.CreatedBy == models.CreatedByRuntime && f.Looked && f.Capabilities.CanSuspend():
		return Next{Step: StepSuspend} // a service that stops does not wait for a boot
	case b.Desired != models.WantDeleted:
		return Next{Step: StepInspect}
	}
	started := f.Newest && f.Run != nil && f.Run.StartingAt != nil // there may be output
	if started && mustLook(b, f) {
		return Next{Step: StepInspect}
	}
	if patient(b, f) && wantsExport(b, f) { // it was awake before, and wakes again
		return nextExport(b, f)
	}
	return nextGone(b, f)
}

func nextFailed(b *models.Sandbox, f Facts) Next {
	switch {
	case b.Desired == models.WantDeleted:
		return nextGone(b, f)
	case f.KeepAlive, b.KeptAt != nil, f.Run != nil && !f.Run.Status.Terminal():
		return Next{Step: StepRest, Attention: AttentionFailed}
	case b.CreatedBy == models.CreatedByRuntime: // a person's conversation is not deleted for it; each order to run tries once
		if b.Desired == models.WantRunning && b.Attempts == 0 && !tried(b, StepResume) {
			return Next{Step: StepResume}
		}
		return Next{Step: StepRest, Attention: AttentionFailed}
	}
	return Next{Step: StepOrder, Why: "the box failed"}
}

func nextDelete(b *models.Sandbox, f Facts) Next {
	if b.Observed == models.SeenRunning {
		if step, ok := prepare(b, f); ok {
			return Next{Step: step}
		}
	}
	if patient(b, f) && wantsExport(b, f) {
		return nextExport(b, f)
	}
	return nextGone(b, f)
}

// attachedUntil says whether an attachment holds a suspend up now, and when to see about it again.
func attachedUntil(b *models.Sandbox, f Facts) (at time.Time, held bool) {
	end := b.OrderedAt.Add(attachedMost)
	if !f.Attached || b.Desired != models.WantSuspended || b.Observed != models.SeenRunning || !f.Now.Before(end) {
		return at, false
	}
	if at = f.Now.Add(attachedLook); end.Before(at) {
		at = end
	}
	return at, true
}

func nextRun(b *models.Sandbox, f Facts) Next {
	switch {
	case b.Observed == models.SeenRunning, tried(b, StepResume):
		return Next{Step: StepRest}
	case b.Attempts > 0 && f.Now.Sub(b.OrderedAt) > resumeMost:
		return Next{Step: StepRest, Attention: AttentionResume, Why: "not running within " + resumeMost.String()}
	}
	return Next{Step: StepResume}
}

func nextSuspend(b *models.Sandbox, f Facts) Next {
	switch {
	case b.Observed == models.SeenSuspended, tried(b, StepSuspend):
		return Next{Step: StepRest}
	case !f.Capabilities.CanSuspend():
		return Next{Step: StepRest, Attention: AttentionUnsuspending}
	case evicting(b) && f.LastActivity == nil:
		return Next{Step: StepGiveWay, Why: "nothing says whether the box is in use", Attention: models.AttentionIdle}
	case evicting(b) && f.LastActivity.After(b.OrderedAt):
		return Next{Step: StepGiveWay, Why: "something runs in the box"}
	case tried(b, markSuspendSent) && f.LastActivity != nil && f.LastActivity.After(activeSince(b, f)):
		return Next{Step: StepGiveWay, Why: "the box was used after the order"}
	case tried(b, markSuspendSent) && f.LastActivity == nil && b.AnsweredAt != nil && !f.Now.Before(b.AnsweredAt.Add(unreadableMost)):
		return Next{Step: StepGiveWay, Why: "nothing says whether the box is in use", Attention: AttentionSuspend}
	}
	if step, ok := prepare(b, f); ok {
		return Next{Step: step}
	}
	return Next{Step: StepSuspend}
}

// evicting reports whether a box is to be suspended for nothing but that nobody uses it, and still can be left as it is: then it
// has to be true when the provider is asked, too (S3-021).
func evicting(b *models.Sandbox) bool {
	return b.OrderedBy == models.ByIdle && b.Desired == models.WantSuspended && b.Observed == models.SeenRunning && !tried(b, markSuspendSent)
}

// activeSince is from when on activity is a user's: after the order, and after the run's own command was dealt with, whose
// end, and our stopping it, move the box's idle clock too.
func activeSince(b *models.Sandbox, f Facts) time.Time {
	since := b.OrderedAt
	if f.Run != nil && f.Run.OutputAt != nil && f.Run.OutputAt.After(since) {
		since = *f.Run.OutputAt
	}
	return since.Add(activityOwnNoise)
}

// prepare returns the next of the steps before a suspend or delete of a running box. They are best effort, share one budget
// and stop when the box cannot be reached.
func prepare(b *models.Sandbox, f Facts) (Step, bool) {
	if tried(b, markUnreachable) || !f.Now.Before(prepareEnd(b, f)) {
		return "", false
	}
	if wantsOutput(b, f) {
		if !f.Quiesced && !tried(b, StepQuiesce) {
			return StepQuiesce, true
		}
		return StepOutput, true
	}
	// A delete is not preceded by a reclaim: what is freed goes with the box anyway.
	if b.Desired == models.WantSuspended && f.Settings.Reclaim != ReclaimOff && b.ReclaimedEpoch != b.AwakeEpoch && !tried(b, StepReclaim) {
		return StepReclaim, true
	}
	if wantsExport(b, f) && !patient(b, f) {
		return StepExport, true
	}
	return "", false
}

func wantsOutput(b *models.Sandbox, f Facts) bool {
	if !f.Newest || f.Run == nil || f.Run.StartingAt == nil || b.OutputEpoch == b.AwakeEpoch || tried(b, StepOutput) {
		return false
	}
	whole := f.Run.OutputAt != nil && f.Run.ExitCode != nil // of an earlier time awake: nothing comes after an exit
	return !whole
}

// prepareEnd is when the budget of the preparing steps ends. The row has the long one, from the first claim after the order.
func prepareEnd(b *models.Sandbox, f Facts) time.Time {
	if b.PrepareUntil == nil {
		return f.Now.Add(prepareShort)
	}
	if b.Desired == models.WantDeleted && (cancelled(f) || f.Settings.CleanupDelay == 0) {
		return b.PrepareUntil.Add(prepareShort - PrepareBudget)
	}
	return *b.PrepareUntil
}

func tried(b *models.Sandbox, s Step) bool { return slices.Contains(b.Tried, string(s)) }

// Stops reports whether the run ended without its command: that one is stopped, not waited for.
func Stops(r *models.Run) bool {
	if r.Status == models.RunCancelled {
		return true
	}
	if r.ErrorDetail == nil {
		return false
	}
	return strings.HasPrefix(*r.ErrorDetail, models.TimedOutPrefix) || strings.HasPrefix(*r.ErrorDetail, "Replaced by run ")
}
