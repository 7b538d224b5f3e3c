package watchdog

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"automation/config"
	"automation/loop"
	"automation/models"
	"automation/sandbox"
)

// Blobs removes stored files; a missing one is no error.
type Blobs interface {
	Delete(ctx context.Context, key string) error
}

// Settler takes ordered boxes to rest (sandbox.Settler).
type Settler interface {
	// Pass claims one box of the place and takes it as far as it gets; 0: there was none.
	Pass(ctx context.Context, p models.Place) (int, error)
	// NextAt is when Pass has work at the earliest; nil: everything is at rest.
	NextAt(ctx context.Context, p models.Place) (*time.Time, error)
}

// LocalAgent is the one agent server of local mode.
type LocalAgent struct {
	URL string
	Key config.Secret
}

// Watchdog is what the duties work with. Nudges may be nil.
type Watchdog struct {
	Store      *models.Store
	Config     config.Config
	Deployment uuid.UUID                        // label of our boxes
	Backends   map[models.Place]sandbox.Backend // what this process serves
	Watches    map[models.Place]Watch           // of those that tell what happens to their boxes; nil: they do not
	Settler    Settler
	Local      *LocalAgent // set in local mode: runs share it, and there are no boxes
	HTTP       *http.Client
	Mono       func() time.Duration // the monotonic clock; nil: this process's
	Blobs      Blobs
	Decide     func(models.Ending) models.Decision // what becomes of the box of a run that ends here
	Log        *slog.Logger

	StaleNudges  map[models.Place]loop.Nudge // woken when a command was started; local mode has no place
	JanitorNudge loop.Nudge                  // woken when a stamp was written or moved
	SettleNudges map[models.Place]loop.Nudge

	AftercareNudge loop.Nudge // woken when a run of local mode has ended

	// Swept is told of each pass that looked for what to remove; nil: nobody.
	Swept func(Sweep)
}

// Sweep is one such pass.
type Sweep struct {
	Kind    string // due, orphan, workspace, events
	Took    time.Duration
	Removed int // records and workspaces that it removed itself; boxes are the settler's
	Failed  int // of those that it could not remove
}

// swept tells of a pass that began at began.
func (w *Watchdog) swept(kind string, began time.Time, removed, failed int) {
	if w.Swept != nil {
		w.Swept(Sweep{Kind: kind, Took: w.Store.Now().Sub(began), Removed: removed, Failed: failed})
	}
}

// Loops returns the duties of this process. In local mode there are no boxes: nothing is swept, settled or looked for
// (S1-053, S1-061).
func (w *Watchdog) Loops() []loop.Loop {
	loops := []loop.Loop{w.Stray(), w.Purge()}
	if w.Local != nil {
		return append(loops, w.Aftercare(), w.Workspaces())
	}
	loops = append(loops, w.Janitor(), w.Unserved())
	for _, p := range w.places() {
		loops = append(loops, w.Stale(p), w.Settle(p))
		can := w.Backends[p].Capabilities()
		if can.List && can.Labels {
			loops = append(loops, w.Orphans(p))
		}
		if w.Config.Dispatch.IdleTTL > 0 && can.Evicts() { // 0: nothing is ever stopped for idleness (S3-013)
			loops = append(loops, w.Idle(p))
		}
		if w.Watches[p] != nil {
			loops = append(loops, w.Watching(p))
		}
	}
	return loops
}

// places are what this process serves, in a stable order.
func (w *Watchdog) places() []models.Place {
	return slices.SortedFunc(maps.Keys(w.Backends), func(a, b models.Place) int {
		return strings.Compare(a.Backend+"\x00"+a.Location, b.Backend+"\x00"+b.Location)
	})
}

// settleSoon wakes the settlers of every place: which of them has the box is theirs to find.
func (w *Watchdog) settleSoon() {
	for _, n := range w.SettleNudges {
		n.Wake()
	}
	w.AftercareNudge.Wake()
}
