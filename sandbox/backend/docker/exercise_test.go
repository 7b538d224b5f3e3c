package docker

import (
	"testing"

	"automation/sandbox/sandboxtest"
)

func TestTheContractOfABackend(t *testing.T) {
	for _, suspend := range []string{SuspendStop, SuspendPause} {
		t.Run(suspend, func(t *testing.T) {
			sandboxtest.Exercise(t, func(t *testing.T) sandboxtest.Subject {
				r := open(t, func(c *Config) { c.Suspend = suspend })
				return sandboxtest.Subject{Backend: r.Backend, Location: r.Location()}
			})
		})
	}
}
