package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// lookEvery is how often a command that waits looks again.
const lookEvery = time.Second

// frame is one line of stored output.
type frame struct {
	Type     string `json:"type"`
	Data     []byte `json:"data"`
	Bytes    int64  `json:"bytes"`
	ExitCode *int   `json:"exit_code"`
	Reason   string `json:"reason"`
}

// readFrames hands every line of stored output to each.
func readFrames(output []byte, each func(frame) error) error {
	scan := bufio.NewScanner(bytes.NewReader(output))
	scan.Buffer(nil, mostAnswer)
	for scan.Scan() {
		var f frame
		if err := json.Unmarshal(scan.Bytes(), &f); err != nil {
			return fmt.Errorf("read the stored output: %w", err)
		}
		if err := each(f); err != nil {
			return err
		}
	}
	return scan.Err()
}

// logs reads the stored output of a run.
func (c *client) logs(ctx context.Context, run string) ([]byte, error) {
	return c.call(ctx, http.MethodGet, "/v1/runs/"+run+"/logs", "", nil)
}

func newRunsLogs(io Streams, as *format) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "logs RUN", Short: "Write the stored output of a run", Args: cobra.ExactArgs(1),
		Long: "Writes what a run has written to standard output and standard error, in its order, to standard output; what was not\n" +
			"kept and the exit code are told on standard error. With -o json the stored lines are written as they are.\n" +
			"Output is stored when a run has ended; -f waits for that.",
		Example: "  automation runs logs 019f0f5e-8d5a\n  automation runs logs -f 019f0f5e-8d5a",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.run(ctx, args[0])
			if err != nil {
				return err
			}
			if follow {
				err := s.await(ctx, id, func(r runObject) bool { return r.HasLogs || isOver(r) && !awaitsOutput(r) })
				if err != nil {
					return err
				}
			}
			output, err := s.logs(ctx, id)
			if err != nil {
				return err
			}
			return s.writeLogs(output)
		}),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait until the run has ended and its output is stored")
	return c
}

func (s *session) writeLogs(output []byte) error {
	if *s.as == asJSON {
		_, err := s.io.Out.Write(output)
		return err
	}
	return readFrames(output, func(f frame) error {
		switch {
		case f.Type == "gap":
			s.done("… %s were not kept", size(f.Bytes))
		case f.ExitCode != nil:
			s.done("exit code %d", *f.ExitCode)
		}
		_, err := s.io.Out.Write(f.Data)
		return err
	})
}

// isOver reports whether a run has ended.
func isOver(r runObject) bool {
	return slices.Contains([]string{"COMPLETED", "FAILED", "CANCELLED", "SKIPPED"}, r.Status)
}

// awaitsOutput reports whether the box of a run that has ended may still bring its output.
func awaitsOutput(r runObject) bool {
	return r.Sandbox != nil && slices.Contains([]string{"running", "provisioning", "deleting"}, r.Sandbox.Observed)
}

// await reads a run again until it is as wanted.
func (s *session) await(ctx context.Context, id string, is func(runObject) bool) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		_, r, err := s.readRun(ctx, id)
		if err != nil || is(r) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

func newRunsWatch(io Streams, as *format) *cobra.Command {
	var exitStatus bool
	c := &cobra.Command{
		Use: "watch RUN", Short: "Wait until a run has ended, and tell each change of its status", Args: cobra.ExactArgs(1),
		Example: "  automation runs watch 019f0f5e-8d5a\n  automation runs watch --exit-status 019f0f5e-8d5a && echo good",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			id, err := s.run(ctx, args[0])
			if err != nil {
				return err
			}
			return s.watch(ctx, id, exitStatus)
		}),
	}
	c.Flags().BoolVar(&exitStatus, "exit-status", false, "exit 1 unless the run has completed")
	return c
}

// watch tells every change on standard error, and the run as it ended on standard output.
func (s *session) watch(ctx context.Context, id string, exitStatus bool) error {
	last := ""
	var ended runObject
	err := s.await(ctx, id, func(r runObject) bool {
		now := r.Status
		if r.CurrentPhase != "" && !isOver(r) {
			now += " (" + r.CurrentPhase + ")"
		}
		if now != last {
			s.done("%s", now)
			last = now
		}
		ended = r
		return isOver(r)
	})
	if err != nil {
		return err
	}
	s.now = time.Now()
	raw, _, err := s.readRun(ctx, id)
	if err != nil {
		return err
	}
	if err := s.show(raw, func() error { return s.showRun(ctx, ended) }); err != nil {
		return err
	}
	if exitStatus && ended.Status != "COMPLETED" {
		return exitError(exitFailed)
	}
	return nil
}
