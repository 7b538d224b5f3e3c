package bench

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// The local user, whose login is localKey.
var (
	localUser = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-user"))
	localOrg  = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-org"))
)

// own configures a service with boxes of its own and the local login.
var own = []string{"AUTOMATION_SANDBOX_BACKEND=process", "AUTOMATION_LOCAL_API_KEY=" + localKey, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=3600"}

// spread is how long many things took.
type spread struct {
	sorted []time.Duration
	all    time.Duration // from the first begin to the last end
}

func spreadOf(times []time.Duration, all time.Duration) spread {
	slices.Sort(times)
	return spread{times, all}
}

// at is the time within which a share of them was done.
func (s spread) at(share float64) time.Duration {
	return s.sorted[min(len(s.sorted)-1, int(share*float64(len(s.sorted))))]
}

func median(times []time.Duration) float64 { return inMilliseconds(spreadOf(times, 0).at(.5)) }
