package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Waits of who follows a server's output between two tries.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	mostLine   = 1 << 20
)

// following reads the output of a server as docs/API.md tells clients to: a stream without an exit line is opened again with
// the last seq, at once where it ended in order and after a while where it broke.
type following struct {
	*session
	api   *client
	path  string
	id    string // of the session; "": the present one
	after int64
	raw   bool
}

// errUnwritten means that standard output takes no more: there is no use in reading on.
var errUnwritten = errors.New("output cannot be written")

var errSentAway = errors.New("it ended at once")

// agentLine is one line of the output.
type agentLine struct {
	frame
	Seq int64 `json:"seq"`
}

func (f *following) run(ctx context.Context, follow bool) error {
	if f.id == "" {
		id, err := f.present(ctx)
		if err != nil {
			return err
		}
		f.id = id
	}
	for wait := firstRetry; ; {
		before, began := f.after, time.Now()
		over, err := f.read(ctx, follow)
		var refused *apiError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case over, err == nil && !follow:
			return nil
		case errors.As(err, &refused) && refused.status < http.StatusInternalServerError:
			return err
		case err != nil && !follow, errors.Is(err, errUnwritten):
			return err
		case err == nil && (f.after > before || time.Since(began) > firstRetry): // sent away in order
			wait = firstRetry
			continue
		case err == nil: // again and again, by a service that stops
			err = errSentAway
		}
		if f.after > before {
			wait = firstRetry
		}
		f.done("the stream broke (%v); again in %s", err, wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
			wait = min(2*wait, lastRetry)
		}
	}
}

// present asks for the session that there is.
func (f *following) present(ctx context.Context) (string, error) {
	var a agentObject
	if err := f.api.get(ctx, f.path, &a); err != nil {
		return "", err
	}
	if a.SessionID == nil {
		return "", fmt.Errorf("a server in this box: %w", errMissing)
	}
	return *a.SessionID, nil
}

// read opens one stream; over after the exit line.
func (f *following) read(ctx context.Context, follow bool) (over bool, err error) {
	query := url.Values{"session_id": {f.id}, "after": {strconv.FormatInt(f.after, 10)}, "follow": {strconv.FormatBool(follow)}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.api.root+f.path+"/output?"+query.Encode(), nil)
	if err != nil {
		return false, err
	}
	f.api.login(request)
	response, err := f.api.http.Do(request)
	if err != nil {
		return false, f.api.unreached(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return false, f.api.refused(response)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, mostLine)
	for lines.Scan() {
		var line agentLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return false, fmt.Errorf("a line is not JSON: %w", err)
		}
		if over, err := f.show(line, lines.Bytes()); err != nil || over {
			return over, err
		}
	}
	if err := lines.Err(); err != nil {
		return false, f.api.unreached(err)
	}
	return false, nil
}

func (f *following) show(line agentLine, text []byte) (over bool, err error) {
	if line.Seq > f.after {
		f.after = line.Seq
	}
	over = line.Type == "exit"
	if f.raw {
		return over, f.write(append(text, '\n'))
	}
	switch {
	case line.Type == "gap":
		f.done("… %s were not kept", size(line.Bytes))
	case over && line.ExitCode != nil:
		f.done("%s, exit code %d", line.Reason, *line.ExitCode)
	case over:
		f.done("%s", line.Reason)
	}
	return over, f.write(line.Data)
}

func (f *following) write(data []byte) error {
	if _, err := f.io.Out.Write(data); err != nil {
		return fmt.Errorf("%w: %w", errUnwritten, err)
	}
	return nil
}
