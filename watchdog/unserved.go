package watchdog

import (
	"context"
	"time"

	"automation/loop"
	"automation/models"
)

// unservedEvery is how often places are looked for that this process does not serve.
const unservedEvery = 10 * time.Minute

// Unserved is the duty that says once of each place with work that this process leaves it alone (BR-03): its backend is not
// configured here, or its boxes are on another machine. Another process may well serve it.
func (w *Watchdog) Unserved() loop.Loop {
	places := w.places()
	said := map[models.Place]bool{}
	return loop.Loop{Name: "unserved", Every: unservedEvery, Pass: func(ctx context.Context) (int, error) {
		found, err := w.Store.UnservedPlaces(ctx, places)
		for _, p := range found {
			if !said[p] {
				said[p] = true
				w.Log.WarnContext(ctx, "boxes are left alone: this process does not serve their place", "provider", p.Backend, "location", p.Location)
			}
		}
		return 0, err
	}}
}
