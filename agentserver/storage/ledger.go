package storage

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Bounds of the ledger: a longer silence than sleepGap between two ticks was sleep, and the oldest spans are forgotten
// beyond spanLimit: what they count for is only kept longer.
const (
	sleepGap  = 15 * time.Minute
	spanLimit = 4096
)

// span is a time during which the server ran.
type span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// ledger knows when the box was awake, so that time asleep counts for nobody's age (S0-150). It is told by a tick now and
// then, and kept in a file; what is not known to have been awake counts as asleep.
type ledger struct {
	file string // "": not kept
	now  func() time.Time
	log  *slog.Logger

	mu    sync.Mutex
	spans []span // in order; the last one goes on
}

func openLedger(dir string, now func() time.Time, log *slog.Logger) *ledger {
	l := &ledger{now: now, log: log}
	if dir != "" {
		l.file = filepath.Join(dir, "awake.json")
		text, err := os.ReadFile(l.file)
		if err == nil {
			err = json.Unmarshal(text, &l.spans)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("when the box was awake is not known any more", "error", err)
			l.spans = nil
		}
	}
	started := now().Round(0)
	l.spans = append(l.spans, span{started, started})
	return l
}

// tick notes that the server runs now.
func (l *ledger) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now().Round(0) // the wall clock: it is what goes on during a sleep
	last := &l.spans[len(l.spans)-1]
	if since := now.Sub(last.To); since < 0 || since > sleepGap {
		l.spans = append(l.spans, span{now, now})
	} else {
		last.To = now
	}
	if extra := len(l.spans) - spanLimit; extra > 0 {
		l.spans = l.spans[extra:]
	}
	if err := l.save(); err != nil {
		l.log.Warn("when the box was awake is not kept", "error", err)
	}
}

func (l *ledger) save() error {
	if l.file == "" {
		return nil
	}
	text, err := json.Marshal(l.spans)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(l.file), 0o700); err != nil {
		return err
	}
	temporary := l.file + ".tmp"
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, l.file)
}

// awakeFor is how long the box was awake since a moment.
func (l *ledger) awakeFor(since time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var total time.Duration
	for _, s := range l.spans {
		from := s.From
		if from.Before(since) {
			from = since
		}
		if s.To.After(from) {
			total += s.To.Sub(from)
		}
	}
	return total
}

// since is when the box started or woke up last.
func (l *ledger) since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spans[len(l.spans)-1].From
}
