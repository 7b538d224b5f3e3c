package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"automation/config"
	"automation/sandbox"
)

// What a box says of its disk (in-box API: GET /api/storage).
type (
	storageObject struct {
		AsOf       time.Time `json:"as_of"`
		Root       string    `json:"root"`
		Filesystem struct {
			TotalBytes int64 `json:"total_bytes"`
			UsedBytes  int64 `json:"used_bytes"`
			FreeBytes  int64 `json:"free_bytes"`
		} `json:"filesystem"`
		TrashBytes    int64                 `json:"trash_bytes"`
		Stuck         []stuckObject         `json:"stuck"`
		Conversations []conversationStorage `json:"conversations"`
	}
	stuckObject struct {
		Path    string    `json:"path"`
		Error   string    `json:"error"`
		Tries   int       `json:"tries"`
		RetryAt time.Time `json:"retry_at"`
	}
	conversationStorage struct {
		ID         string     `json:"id"`
		Layout     string     `json:"layout"`
		State      string     `json:"state"`
		LastActive *time.Time `json:"last_active"`
		SizeBytes  int64      `json:"size_bytes"`
		Retention  struct {
			Policy string `json:"policy"`
			Days   *int   `json:"days"`
		} `json:"retention"`
		NextPass struct {
			Tier      string     `json:"tier"`
			Bytes     int64      `json:"bytes"`
			NotBefore *time.Time `json:"not_before"`
			Reason    string     `json:"reason"`
		} `json:"next_pass"`
	}
)

// boxSession is a client command that talks to the agent server in a box.
type boxSession struct {
	*session
	inside string // what the paths of the box begin with
}

// withBox makes the RunE of a command on a box: the first argument names one, which is reached through the service; with --url
// it is reached directly, and there is no such argument. feature is what the agent server must announce, wants how many other
// arguments there are.
func (io Streams) withBox(as *format, direct *string, feature string, wants int, do func(ctx context.Context, b *boxSession, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		here := wants
		if *direct == "" {
			here++
		}
		if len(args) != here {
			return usageError{fmt.Errorf("want a box, or --url of an agent server: %s", c.UseLine())}
		}
		ctx, stop := untilSignal(c.Context())
		defer stop()
		b, args, err := io.enterBox(ctx, as, *direct, args)
		if err != nil {
			return err
		}
		defer b.close()
		var info struct {
			Version      string   `json:"version"`
			Capabilities []string `json:"capabilities"`
		}
		if err := b.get(ctx, b.inside+"/server_info", &info); err != nil {
			return err
		}
		if !slices.Contains(info.Capabilities, feature) {
			return &apiError{status: http.StatusConflict, code: "unsupported", message: fmt.Sprintf(
				"the agent server of this box (%s) announces no %s; docs/PROVIDERS.md shows how to put ours beside it", info.Version, feature)}
		}
		return do(ctx, b, args)
	}
}

func (io Streams) enterBox(ctx context.Context, as *format, direct string, args []string) (*boxSession, []string, error) {
	if direct != "" {
		c, err := io.connectBox(direct)
		return &boxSession{session: &session{client: c, io: io, as: as, now: time.Now()}}, args, err
	}
	c, err := io.connect()
	if err != nil {
		return nil, nil, err
	}
	b := &boxSession{session: &session{client: c, io: io, as: as, now: time.Now()}}
	id, err := b.box(ctx, args[0])
	b.inside = "/sandboxes/" + id + "/proxy"
	if err != nil {
		c.close()
	}
	return b, args[1:], err
}

// connectBox is a client of an agent server at its own URL, with the session key of AUTOMATION_SESSION_KEY or of the file that
// AUTOMATION_SESSION_KEY_FILE names: a key on a command line is seen by everybody on the machine.
func (io Streams) connectBox(direct string) (*client, error) {
	u, err := url.Parse(direct)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, usageError{fmt.Errorf("--url %q: want an http or https URL, e.g. http://127.0.0.1:8000", direct)}
	}
	env := config.Environment(io.Env)
	key := env["AUTOMATION_SESSION_KEY"]
	if file := env["AUTOMATION_SESSION_KEY_FILE"]; key == "" && file != "" {
		if key, err = readKey(file); err != nil {
			return nil, settingError("AUTOMATION_SESSION_KEY_FILE", file, "want a file that can be read: "+err.Error())
		}
	}
	c := newClient(strings.TrimRight(u.String(), "/"), key)
	c.below, c.keyHeader = "", "X-Session-API-Key"
	return c, nil
}

func newStorage(io Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "storage", Short: "Show and free the disk of a box, through the service or directly", Args: cobra.NoArgs,
		Long: "These commands talk to the agent server in a box: by the box's id through the service, which wakes a paused box,\n" +
			"or with --url directly, with the session key of AUTOMATION_SESSION_KEY or AUTOMATION_SESSION_KEY_FILE.\n" +
			"None of them counts as activity in the box.",
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	as := outputFlag(c)
	direct := c.PersistentFlags().String("url", "", "the agent server itself, with its key in AUTOMATION_SESSION_KEY, instead of a box of the service")
	c.AddCommand(newStorageStatus(io, as, direct), newStorageReclaim(io, as, direct), newStorageRetention(io, as, direct), newStorageTrash(io, as, direct))
	return c
}

func newStorageStatus(io Streams, as *format, direct *string) *cobra.Command {
	var asTree bool
	c := &cobra.Command{
		Use: "status [BOX]", Short: "What takes space in a box, and what the next pass would free", Args: cobra.MaximumNArgs(1),
		Example: "  automation storage status 019f0f5e-8d5a\n  automation storage status --url http://127.0.0.1:8000 --tree",
		RunE: io.withBox(as, direct, sandbox.FeatureStorageStatus, 0, func(ctx context.Context, b *boxSession, _ []string) error {
			status, raw, err := b.storage(ctx)
			if err != nil {
				return err
			}
			return b.show(raw, func() error {
				if asTree {
					return status.tree().write(b.io.Out)
				}
				return b.writeStatus(status)
			})
		}),
	}
	c.Flags().BoolVar(&asTree, "tree", false, "as a tree: layouts, conversations, the trash")
	return c
}

// storage reads what the box says of its disk.
func (b *boxSession) storage(ctx context.Context) (status storageObject, raw json.RawMessage, err error) {
	if err = b.get(ctx, b.inside+"/api/storage", &raw); err == nil {
		err = json.Unmarshal(raw, &status)
	}
	return status, raw, err
}

func (b *boxSession) writeStatus(status storageObject) error {
	fs := status.Filesystem
	err := facts(b.io.Out, "root", status.Root, "as of", ago(&status.AsOf, b.now),
		"file system", fmt.Sprintf("%s used, %s free of %s", size(fs.UsedBytes), size(fs.FreeBytes), size(fs.TotalBytes)),
		"trash", size(status.TrashBytes))
	if err != nil {
		return err
	}
	t := newTable("CONVERSATION", "LAYOUT", "STATE", "LAST ACTIVE", "SIZE", "RETENTION", "NEXT PASS", "WHY")
	t.text, t.rest = []string{"WHY"}, []string{"LAYOUT", "RETENTION", "LAST ACTIVE"}
	for _, c := range status.Conversations {
		t.row(c.ID, c.Layout, c.State, ago(c.LastActive, b.now), size(c.SizeBytes), c.retention(), c.next(b.now), c.NextPass.Reason)
	}
	if err := b.table(t, "no conversations"); err != nil {
		return err
	}
	return b.writeStuck(status)
}

func (c conversationStorage) retention() string {
	if c.Retention.Days != nil {
		return fmt.Sprintf("%d days", *c.Retention.Days)
	}
	return c.Retention.Policy
}

// next is what the next pass would free.
func (c conversationStorage) next(now time.Time) string {
	if c.NextPass.Bytes == 0 {
		return ""
	}
	text := size(c.NextPass.Bytes) + " of " + c.NextPass.Tier
	if at := c.NextPass.NotBefore; at != nil && at.After(now) {
		text += " " + until(at, now)
	}
	return text
}

// tree shows the same as a tree.
func (status storageObject) tree() *branch {
	root := newBranch(status.Root)
	for _, c := range status.Conversations {
		note := c.State
		if c.NextPass.Bytes > 0 {
			note += ", next pass frees " + size(c.NextPass.Bytes)
		}
		root.add([]string{c.Layout, c.ID}, c.SizeBytes, note)
	}
	if status.TrashBytes > 0 {
		root.add([]string{"trash"}, status.TrashBytes, "")
	}
	return root
}

func newStorageRetention(io Streams, as *format, direct *string) *cobra.Command {
	return &cobra.Command{
		Use: "retention [BOX] CONVERSATION default|on_stop|DAYS", Short: "Say how long the runtime of a conversation is kept", Args: cobra.RangeArgs(2, 3),
		Example: "  automation storage retention 019f0f5e-8d5a 0198c0de-0000-4000-8000-000000000001 7d\n" +
			"  automation storage retention --url http://127.0.0.1:8000 0198c0de-0000-4000-8000-000000000001 on_stop",
		RunE: io.withBox(as, direct, "conversation_retention_v1", 2, func(ctx context.Context, b *boxSession, args []string) error {
			body, err := retentionOf(args[1])
			if err != nil {
				return err
			}
			var raw json.RawMessage
			path := b.inside + "/api/conversations/" + url.PathEscape(args[0]) + "/retention"
			if err := b.json(ctx, http.MethodPut, path, body, &raw); err != nil {
				return err
			}
			return b.show(raw, func() error {
				b.done("retention of %s is %s", args[0], args[1])
				return nil
			})
		}),
	}
}

// retentionOf is the body for a word: default, on_stop, or days such as 7d.
func retentionOf(word string) (map[string]any, error) {
	if word == "default" || word == "on_stop" {
		return map[string]any{"policy": word}, nil
	}
	d, err := parseSpan(word)
	if days := int(d / (24 * time.Hour)); err == nil && days > 0 && d%(24*time.Hour) == 0 {
		return map[string]any{"policy": "days", "days": days}, nil
	}
	return nil, usageError{fmt.Errorf("retention %q: want default, on_stop, or days such as 7d", word)}
}
