package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// exportsWithin bounds the making and the download of an export, which may have a GiB.
const exportsWithin = 20 * time.Minute

// exportObject is the stored history of a box.
type exportObject struct {
	TakenAt       time.Time `json:"taken_at"`
	Bytes         int64     `json:"bytes"`
	SHA256        string    `json:"sha256"`
	Current       bool      `json:"current"`
	Conversations []struct {
		ID     string `json:"id"`
		Events int    `json:"events"`
	} `json:"conversations"`
}

// summary is an export in a few words.
func (x *exportObject) summary(now time.Time) string {
	if x == nil {
		return ""
	}
	state := "older than what is in the box"
	if x.Current {
		state = "current"
	}
	return fmt.Sprintf("%s, %s, %s", ago(&x.TakenAt, now), size(x.Bytes), state)
}

func newBoxExport(io Streams, as *format) *cobra.Command {
	var fresh bool
	var to string
	c := &cobra.Command{
		Use: "export BOX", Short: "Download the stored history of a box, after it is gone too", Args: cobra.ExactArgs(1),
		Long: "Writes the conversations in a box, as they were stored before it was paused or deleted, to a zip file. With --now a\n" +
			"box that runs is asked for its history first; of a box that runs no export is current.",
		Example: "  automation box export 019f0f5e-8d5a\n  automation box export 019f0f5e-8d5a --now --to history.zip",
		RunE: io.withClient(as, func(ctx context.Context, s *session, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, exportsWithin)
			defer cancel()
			id, err := s.box(ctx, args[0])
			if err != nil {
				return err
			}
			if fresh {
				if err := s.json(ctx, http.MethodPost, "/sandboxes/"+id+"/export", nil, nil); err != nil {
					return err
				}
			}
			if to == "" {
				to = id + ".zip"
			}
			return s.saveExport(ctx, id, to)
		}),
	}
	c.Flags().BoolVar(&fresh, "now", false, "have the box export first")
	c.Flags().StringVar(&to, "to", "", "the file; - is standard output; <box id>.zip where not given")
	return c
}

// saveExport downloads the export of a box to a file, which is there whole or not at all, or to standard output.
func (s *session) saveExport(ctx context.Context, id, to string) error {
	if to == "-" {
		return s.download(ctx, "/v1/sandboxes/"+id+"/export", s.io.Out)
	}
	file, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".")
	if err != nil {
		return err
	}
	err = s.download(ctx, "/v1/sandboxes/"+id+"/export", file)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	s.done("wrote %s", to)
	return nil
}

// download writes the answer of a route to w, and compares its digest with the one that the service tells.
func (c *client) download(ctx context.Context, path string, w io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.root+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	c.login(request)
	response, err := c.http.Do(request)
	if err != nil {
		return c.unreached(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		got := answer{code: response.StatusCode, status: response.Status, requestID: response.Header.Get("X-Request-Id")}
		if got.body, err = io.ReadAll(io.LimitReader(response.Body, mostAnswer)); err != nil {
			return c.unreached(err)
		}
		return c.refusal(got)
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, sum), response.Body); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	told := strings.Trim(strings.TrimPrefix(response.Header.Get("Repr-Digest"), "sha-256="), ":")
	if told != "" && told != base64.StdEncoding.EncodeToString(sum.Sum(nil)) {
		return errors.New("download: what came is not what is stored")
	}
	return nil
}
