package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"automation/sandbox"
)

// reclaimObject is a box's answer to a reclaim.
type reclaimObject struct {
	PlanID     string `json:"plan_id"`
	FreedBytes int64  `json:"freed_bytes"`
	Items      []struct {
		ConversationID string `json:"conversation_id"`
		Tier           string `json:"tier"`
		Path           string `json:"path"`
		Bytes          int64  `json:"bytes"`
		Outcome        string `json:"outcome"`
		Reason         string `json:"reason"`
	} `json:"items"`
}

func newStorageReclaim(io Streams, as *format, direct *string) *cobra.Command {
	var dry, asTree, noWait bool
	var tier, plan string
	var conversations []string
	c := &cobra.Command{
		Use: "reclaim [BOX]", Short: "Have a box free what can be rebuilt, and wait until it is gone", Args: cobra.MaximumNArgs(1),
		Example: "  automation storage reclaim 019f0f5e-8d5a --dry-run --tree\n  automation storage reclaim --url http://127.0.0.1:8000 --plan 5f0c",
		RunE: io.withBox(as, direct, sandbox.FeatureStorageReclaim, 0, func(ctx context.Context, b *boxSession, _ []string) error {
			body := map[string]any{"dry_run": dry, "tier": tier}
			if plan != "" {
				body["plan_id"] = plan
			}
			if len(conversations) > 0 {
				body["conversation_ids"] = conversations
			}
			limited, cancel := context.WithTimeout(ctx, boxesWithin)
			defer cancel()
			var raw json.RawMessage
			if err := b.json(limited, http.MethodPost, b.inside+"/api/storage/reclaim", body, &raw); err != nil {
				return err
			}
			if err := b.showPass(raw, dry, asTree); err != nil || dry || noWait {
				return err
			}
			return b.emptied(ctx)
		}),
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only plan")
	c.Flags().StringVar(&tier, "tier", "policy", "policy, caches, dependencies or runtime")
	c.Flags().StringVar(&plan, "plan", "", "apply exactly this plan of a dry run")
	c.Flags().StringSliceVar(&conversations, "conversation", nil, "only these")
	c.Flags().BoolVar(&asTree, "tree", false, "show paths as a tree")
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the trash is empty")
	return c
}

func (b *boxSession) showPass(raw json.RawMessage, dry, asTree bool) error {
	return b.show(raw, func() error {
		if !asTree {
			return b.showReclaim(raw, dry)
		}
		var pass reclaimObject
		if err := json.Unmarshal(raw, &pass); err != nil {
			return err
		}
		root := newBranch(".")
		for _, item := range pass.Items {
			note := item.Tier
			if item.Outcome == "skipped" {
				note += ", skipped: " + item.Reason
			}
			root.add(strings.Split(item.Path, "/"), item.Bytes, note)
		}
		if err := root.write(b.io.Out); err != nil {
			return err
		}
		b.done(map[bool]string{true: "would free %s (plan %s)", false: "freed %s (plan %s)"}[dry], size(pass.FreedBytes), pass.PlanID)
		return nil
	})
}

func newStorageTrash(io Streams, as *format, direct *string) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "trash [BOX]", Short: "What was freed and is still being deleted, and what cannot be", Args: cobra.MaximumNArgs(1),
		Example: "  automation storage trash 019f0f5e-8d5a\n  automation storage trash --url http://127.0.0.1:8000 --wait",
		RunE: io.withBox(as, direct, sandbox.FeatureStorageStatus, 0, func(ctx context.Context, b *boxSession, _ []string) error {
			status, raw, err := b.storage(ctx)
			if err != nil {
				return err
			}
			err = b.show(raw, func() error {
				if err := facts(b.io.Out, "trash", size(status.TrashBytes)); err != nil {
					return err
				}
				return b.writeStuck(status)
			})
			if err != nil || !wait {
				return err
			}
			return b.emptied(ctx)
		}),
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until it is empty")
	return c
}

// writeStuck shows what cannot be deleted, if anything.
func (b *boxSession) writeStuck(status storageObject) error {
	if len(status.Stuck) == 0 {
		return nil
	}
	t := newTable("CANNOT BE DELETED", "TRIES", "NEXT TRY", "WHY")
	t.text = []string{"CANNOT BE DELETED", "WHY"}
	for _, s := range status.Stuck {
		t.row(s.Path, strconv.Itoa(s.Tries), until(&s.RetryAt, b.now), s.Error)
	}
	return b.table(t, "")
}

// trashLookEvery is how often the trash is looked at while somebody waits for it.
const trashLookEvery = 300 * time.Millisecond

// emptied waits until the box has deleted what is in its trash, with a bar for people. Exit code 6 says that some of it cannot
// be deleted.
func (b *boxSession) emptied(ctx context.Context) error {
	status, _, err := b.storage(ctx)
	if err != nil || status.TrashBytes == 0 {
		return err
	}
	bar := progressbar.NewOptions64(status.TrashBytes, progressbar.OptionSetWriter(b.io.Err), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription("deleting"), progressbar.OptionClearOnFinish(), progressbar.OptionSetVisibility(b.io.watched()))
	whole, ticks := status.TrashBytes, time.NewTicker(trashLookEvery)
	defer ticks.Stop()
	for status.TrashBytes > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticks.C:
		}
		before := status.TrashBytes
		if status, _, err = b.storage(ctx); err != nil {
			return err
		}
		if err := bar.Set64(max(0, whole-status.TrashBytes)); err != nil {
			return err
		}
		if len(status.Stuck) > 0 && status.TrashBytes >= before {
			_ = bar.Exit()
			b.done("%s cannot be deleted now; it is tried again", size(status.TrashBytes))
			return exitError(exitPartly)
		}
	}
	if err := bar.Finish(); err != nil {
		return err
	}
	b.done("the trash is empty")
	return nil
}

// watched reports whether somebody sees standard error as it is written.
func (io Streams) watched() bool {
	f, ok := io.Err.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
