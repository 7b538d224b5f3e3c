package watchdog

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// told is a provider's stream: it yields changes and then breaks off.
func told(changes ...sandbox.Change) Watch {
	return func(context.Context) iter.Seq2[sandbox.Change, error] {
		return func(yield func(sandbox.Change, error) bool) {
			for _, c := range changes {
				if !yield(c, nil) {
					return
				}
			}
			yield(sandbox.Change{}, errors.New("the engine went away"))
		}
	}
}

func TestWatchingLooksAtWhatItsProviderTellsOf(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		deploy, err := s.Deployment(t.Context())
		require.NoError(t, err)
		fake, p := sandboxtest.NewFake(sandboxtest.Quirks{}), models.Place{Backend: modelstest.Backend}
		box := func(observed models.Observed, atProvider bool) *models.Sandbox {
			b := modelstest.NewBox(s)
			b.Desired, b.Observed, b.NextStepAt = models.WantRunning, observed, nil
			if atProvider {
				require.NoError(t, fake.Create(t.Context(), sandbox.Spec{Label: sandbox.Label{Deployment: deploy, WorkspaceID: b.ID}},
					func(i sandbox.Identity) error {
						b.Identities = []*models.Identity{{SandboxID: b.ID, Kind: i.Kind, ProviderID: i.ProviderID, SeenAt: s.Now().Add(-1)}}
						return nil
					}))
			}
			return modelstest.Box(t, s, b)
		}
		agrees, differs, died := box(models.SeenRunning, true), box(models.SeenSuspended, true), box(models.SeenRunning, true)
		nudge := loop.NewNudge()
		w := &Watchdog{
			Store: s, Deployment: deploy, Backends: map[models.Place]sandbox.Backend{p: fake}, Log: slog.New(slog.DiscardHandler),
			SettleNudges: map[models.Place]loop.Nudge{p: nudge},
			Watches: map[models.Place]Watch{p: told(
				sandbox.Change{}, sandbox.Change{WorkspaceID: died.ID, State: models.SeenSuspended}, sandbox.Change{WorkspaceID: uuid.New(), State: models.SeenRunning},
			)},
		}
		heard, err := w.watch(t.Context(), p)
		require.ErrorContains(t, err, "went away", "the loop begins anew after it")
		require.Equal(t, 3, heard)
		due := func(b *models.Sandbox) bool {
			now, err := s.Sandbox(t.Context(), uuid.Nil, b.ID)
			require.NoError(t, err)
			return now.NextStepAt != nil
		}
		require.False(t, due(agrees))
		require.True(t, due(differs), "what was missed before is found by comparing once")
		require.True(t, due(died))
		select {
		case <-nudge:
		default:
			t.Fatal("the settler is not woken")
		}
	})
}
