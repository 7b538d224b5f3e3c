package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// session is one client command under way.
type session struct {
	*client
	io  Streams
	as  *format
	now time.Time
}

// withClient makes the RunE of a command that needs the service.
func (io Streams) withClient(as *format, do func(ctx context.Context, s *session, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, stop := untilSignal(c.Context())
		defer stop()
		connection, err := io.connect()
		if err != nil {
			return err
		}
		defer connection.close()
		return do(ctx, &session{client: connection, io: io, as: as, now: time.Now()}, args)
	}
}

// show writes the answer as JSON, or what people does with the table of it.
func (s *session) show(answer any, people func() error) error {
	if *s.as == asJSON {
		return writeJSON(s.io.Out, answer)
	}
	return people()
}

// table writes a table, and nothing but a note on standard error where it has no rows.
func (s *session) table(t *table, none string) error {
	if len(t.rows) == 0 {
		fmt.Fprintln(s.io.Err, none)
		return nil
	}
	return t.write(s.io.Out, s.io.width())
}

// done says on standard error, for people, what was done.
func (s *session) done(format string, args ...any) {
	fmt.Fprintln(s.io.Err, printable(fmt.Sprintf(format, args...)))
}

// asAPIError finds the service's refusal in err.
func asAPIError(err error, into **apiError) bool { return errors.As(err, into) }

// outcome is what became of one argument of a command that takes several.
type outcome struct {
	Argument string `json:"argument"`
	ID       string `json:"id,omitempty"`
	OK       bool   `json:"ok"`
	Error    string `json:"error,omitempty"`
}

// each does something to every argument; what fails does not keep the others from being tried. The exit code is that of the
// failure where all failed, and 6 where some did.
func (s *session) each(args []string, did string, do func(word string) (id string, err error)) error {
	var failed []error
	outcomes := make([]outcome, len(args))
	for i, word := range args {
		id, err := do(word)
		outcomes[i] = outcome{Argument: word, ID: id, OK: err == nil}
		if err != nil {
			outcomes[i].Error = err.Error()
			failed = append(failed, fmt.Errorf("%s: %w", word, err))
			continue
		}
		if *s.as != asJSON {
			fmt.Fprintln(s.io.Out, id)
			s.done("%s %s", did, id)
		}
	}
	if *s.as == asJSON {
		if err := writeJSON(s.io.Out, outcomes); err != nil {
			return err
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) == len(args):
		return errors.Join(failed...)
	}
	for _, err := range failed {
		fmt.Fprintln(s.io.Err, "automation:", printable(err.Error()))
	}
	return exitError(exitPartly)
}
