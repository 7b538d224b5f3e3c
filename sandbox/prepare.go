package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"automation/models"
)

// Steps before a suspend or delete, made in the box by its agent server. Each is best effort; a failed one is not repeated
// under the same order, and none is made after the box could not be reached.

// keepOutputBytes is how much of a run's output is kept: the newest.
const keepOutputBytes = 8 << 20

// errInterrupted means that an order, the end of the lease or of the service ended a preparing step: it was not tried.
var errInterrupted = errors.New("preparing step interrupted")

func (w *work) agent() Agent {
	return Agent{URL: w.claim.Box.URL, Key: w.claim.Box.SessionKey, HTTP: w.HTTP}
}

// prepare makes one preparing step within what is left of the budget.
func (w *work) prepare(name Step) (models.Step, error) {
	started := w.Store.Now()
	left := prepareEnd(w.claim.Box, w.factsNow()).Sub(started)
	ctx, cancel := context.WithTimeout(w.lease.Patient, left)
	defer cancel()
	step := w.blank(name)
	event, err := w.preparing(ctx, name, &step)
	if err == nil {
		took := w.Store.Now().Sub(started)
		event.DurationMS = took.Milliseconds()
		if event.What != "" {
			step.Events = []models.Event{event}
			w.Prepared(name, event.Outcome, event.Bytes, took)
		}
		return step, nil
	}
	if w.lease.Patient.Err() != nil {
		return step, fmt.Errorf("%w: %w", errReleased, errInterrupted)
	}
	failed := w.blank(name)
	failed.Tried = true
	if errors.Is(err, ErrUnreachable) {
		failed.Name = string(markUnreachable)
	}
	failed.Events = []models.Event{w.event(pastOf[name], "failed", w.errorText(err))}
	w.Prepared(name, "failed", 0, w.Store.Now().Sub(started))
	w.Log.WarnContext(ctx, "preparing step failed", "workspace_id", w.claim.Box.ID, "step", name, "error", w.errorText(err))
	return failed, nil
}

var pastOf = map[Step]string{StepQuiesce: "quiesced", StepOutput: "output", StepReclaim: "reclaimed", StepExport: "exported"}

func (w *work) preparing(ctx context.Context, name Step, step *models.Step) (models.Event, error) {
	switch name {
	case StepQuiesce:
		return w.quiesce(ctx)
	case StepOutput:
		step.OutputDone = true
		return w.output(ctx)
	case StepReclaim:
		step.ReclaimedDone = true
		return w.reclaim(ctx, step)
	default:
		step.ExportedDone = true
		return w.exportNow(ctx)
	}
}

// quiesce lets the command that called back end, for at most the exit grace; one whose run was replaced, cancelled or timed
// out is stopped.
func (w *work) quiesce(ctx context.Context) (models.Event, error) {
	id, err := w.commandID(ctx)
	if err != nil || id == "" {
		w.facts.Quiesced = err == nil
		return models.Event{}, err
	}
	grace := w.Settings.ExitGrace
	event := models.Event{}
	if Stops(w.claim.Run) {
		out, err := w.agent().LastOutput(ctx, id)
		if err != nil {
			return event, err
		}
		if out.ExitCode == nil {
			if err := w.agent().StopCommand(ctx, id); err != nil {
				return event, err
			}
			event = w.event(pastOf[StepQuiesce], "ok", "the command was stopped")
		}
		grace = 3 * time.Second // the box kills after one
	}
	exited, err := w.exits(ctx, id, grace)
	if err != nil {
		return event, err
	}
	if !exited {
		event = w.event(pastOf[StepQuiesce], "failed", "the command still runs")
	}
	w.facts.Quiesced = true
	return event, nil
}

// exits waits for a command's exit for at most grace.
func (w *work) exits(ctx context.Context, id string, grace time.Duration) (bool, error) {
	limit := time.Now().Add(grace)
	for wait := w.Timing.Poll; ; wait = min(wait*2, 500*time.Millisecond) {
		out, err := w.agent().LastOutput(ctx, id)
		if err != nil || out.ExitCode != nil {
			return err == nil, err
		}
		left := time.Until(limit)
		if left <= 0 {
			return false, nil
		}
		if err := pause(ctx, min(wait, left)); err != nil {
			return false, err
		}
	}
}

// commandID is the entrypoint's id in the box: as stored, else looked up by its StartMarker. "" when the box knows
// of none.
func (w *work) commandID(ctx context.Context) (string, error) {
	run := w.claim.Run
	if w.command != "" {
		return w.command, nil
	}
	if run.BashCommandID != nil && *run.BashCommandID != "" {
		w.command = *run.BashCommandID
		return w.command, nil
	}
	id, err := w.agent().FindCommand(ctx, StartMarker(run.ID))
	if err != nil || id == "" {
		return "", err
	}
	if err := w.Store.RecordCommand(ctx, run.ID, id); err != nil {
		return "", fmt.Errorf("record command: %w", err)
	}
	w.command = id
	return id, nil
}

// output stores the run's output, its exit code and its finish response.
func (w *work) output(ctx context.Context) (models.Event, error) {
	run := w.claim.Run
	id, err := w.commandID(ctx)
	if err != nil {
		return models.Event{}, err
	}
	var stored models.Output
	if id != "" {
		tail, err := w.readOutput(ctx, id)
		if err != nil {
			return models.Event{}, err
		}
		if stored, err = w.storeOutput(ctx, tail); err != nil {
			return models.Event{}, err
		}
	}
	stored.FinishResponse = w.finishResponse(ctx)
	if err := w.Store.RecordOutput(ctx, run.ID, stored); err != nil {
		return models.Event{}, fmt.Errorf("record output: %w", err)
	}
	if stored.Key == nil {
		return w.event(pastOf[StepOutput], "skipped", "the box has no output of the run"), nil
	}
	event := w.event(pastOf[StepOutput], "ok", "")
	event.Bytes = stored.Bytes
	return event, nil
}

// readOutput takes the output from the box. What was read before a break is better than nothing.
func (w *work) readOutput(ctx context.Context, id string) (*outputTail, error) {
	info, err := w.serverInfo(ctx)
	if err != nil {
		return nil, err
	}
	tail := &outputTail{limit: keepOutputBytes}
	frames := w.agent().commandFrames(ctx, id)
	if info.Has(FeatureProcessOutput) {
		frames = w.agent().ProcessOutput(ctx, id, 0)
	}
	for frame, err := range frames {
		var answer *AgentError
		switch {
		case errors.As(err, &answer) && answer.Status == http.StatusNotFound:
			return tail, nil // the box forgot the command
		case err != nil && len(tail.frames) == 0:
			return nil, err
		case err != nil:
			w.Log.WarnContext(ctx, "output was cut", "workspace_id", w.claim.Box.ID, "error", w.errorText(err))
			return tail, nil
		}
		tail.add(frame)
	}
	return tail, nil
}

func (w *work) storeOutput(ctx context.Context, tail *outputTail) (models.Output, error) {
	if tail.exit == nil && len(tail.frames) == 0 {
		return models.Output{}, nil
	}
	key := "outputs/" + w.claim.Run.ID.String() + ".ndjson"
	size, err := w.Blobs.Put(ctx, key, &frameReader{frames: tail.lines()})
	if err != nil {
		return models.Output{}, fmt.Errorf("store output: %w", err)
	}
	out := models.Output{Key: &key, Bytes: size}
	if tail.exit != nil {
		out.ExitCode = tail.exit.ExitCode
	}
	return out, nil
}

// finishResponse is best effort: nil when the run has no conversation, or it cannot be read.
func (w *work) finishResponse(ctx context.Context) json.RawMessage {
	conversation := w.claim.Run.ConversationID
	if conversation == nil || *conversation == "" {
		return nil
	}
	answer, err := w.agent().FinishResponse(ctx, *conversation)
	if err != nil {
		w.Log.DebugContext(ctx, "finish response not read", "workspace_id", w.claim.Box.ID, "error", w.errorText(err))
		return nil
	}
	return answer
}

// reclaim lets the box free what can be rebuilt, so that what is kept is smaller (C-008, S0-127), and takes down what is left
// while the box is awake anyway (S0-152). A server that does not announce it is not asked.
func (w *work) reclaim(ctx context.Context, step *models.Step) (models.Event, error) {
	info, err := w.serverInfo(ctx)
	if err != nil {
		return models.Event{}, err
	}
	event := w.event(pastOf[StepReclaim], "skipped", "the agent server does not offer it")
	if info.Has(FeatureStorageReclaim) {
		freed, err := w.agent().Reclaim(ctx, false, w.Settings.tier(w.backend.Capabilities()))
		if err != nil {
			return models.Event{}, err
		}
		step.FreedBytes = freed.FreedBytes
		event = w.event(pastOf[StepReclaim], "ok", "")
		event.Bytes = freed.FreedBytes
	}
	if info.Has(FeatureStorageStatus) {
		if step.Storage, err = w.agent().Storage(ctx); err != nil {
			w.Log.DebugContext(ctx, "storage status not read", "workspace_id", w.claim.Box.ID, "error", w.errorText(err))
		}
	}
	return event, nil
}

func (w *work) serverInfo(ctx context.Context) (ServerInfo, error) {
	if w.info != nil {
		return *w.info, nil
	}
	info, err := w.agent().ServerInfo(ctx)
	if err != nil {
		return info, err
	}
	w.info = &info
	return info, nil
}
