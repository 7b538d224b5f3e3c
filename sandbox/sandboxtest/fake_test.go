package sandboxtest_test

import (
	"testing"

	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestS0_124_FakeKeepsTheContractInEveryKind(t *testing.T) {
	kinds := map[string]sandboxtest.Quirks{
		"memory in place":                {},
		"disk only, key rotates":         {Suspend: sandbox.SuspendDisk, RotateKey: true, Activity: true},
		"snapshot and recreate":          {Suspend: sandbox.SuspendSnapshot},
		"new identity":                   {NewIdentity: true},
		"none":                           {Suspend: sandbox.SuspendNone},
		"no list":                        {NoList: true},
		"no labels":                      {NoLabels: true},
		"eventual listing":               {ListLag: 2},
		"slow in everything":             {SlowCreate: 2, SlowSuspend: 2, SlowResume: 2, SlowDelete: 2},
		"looking counts, placed, expiry": {LookingCounts: true, Placed: true, Expiry: 1 << 40, FalseGone: true},
	}
	for name, quirks := range kinds {
		t.Run(name, func(t *testing.T) {
			sandboxtest.Exercise(t, func(*testing.T) sandboxtest.Subject {
				return sandboxtest.Subject{Backend: sandboxtest.NewFake(quirks)}
			})
		})
	}
}
