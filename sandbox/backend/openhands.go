package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"automation/models"
	"automation/sandbox"
)

const openhandsName = "openhands"

// How long calls of OpenHands Cloud may take (S1-044).
const (
	lifecycleWithin = 30 * time.Second
	createWithin    = 60 * time.Second
)

// openhandsCan is what OpenHands Cloud can do. Pausing scales the pod to zero and keeps the volume; a search shows only the
// key's own boxes and no label; a paused box takes no place under the user's limit of running ones (S1-048); the conversation
// stays readable after a delete (S1-049). Every route answers 404 for its upstream's failures too.
var openhandsCan = sandbox.Capabilities{
	Suspend: sandbox.SuspendDisk, SameIdentity: true,
	List:          true, // of one user's boxes
	NativeIdle:    sandbox.Timer{Supported: true, Action: "suspend", Default: 20 * time.Minute},
	NativeExpiry:  sandbox.Timer{Supported: true, Action: "delete", Default: 60 * day},
	KeepsHistory:  true,
	SuspendedCost: "storage",
	FalseGone:     true,
	WakeSuspends:  true, // above the owner's limit of running ones
}

func init() { register(openhandsName, openhandsCan, newOpenHands) }

// openhands is OpenHands Cloud's sandboxes API (contract section 4.1). Calls are made with the key of the box's owner.
type openhands struct {
	api  jsonClient
	keys *mintedKeys
	log  *slog.Logger
	// A create that is told to wait is repeated: up to tries calls, with waits that double within the bounds.
	tries            int
	minWait, maxWait time.Duration
}

// newOpenHands takes its settings from the service's own (Deps.Config): the login needs them too.
func newOpenHands(d Deps, _ struct{}) (sandbox.Backend, error) {
	if d.Config.Auth.ServiceKey == "" {
		return nil, errors.New("backend openhands: AUTOMATION_SERVICE_KEY is not set")
	}
	u, err := url.Parse(d.Config.Sandbox.APIBaseURL)
	if err != nil || u.Host == "" {
		return nil, errors.New("backend openhands: AUTOMATION_OPENHANDS_API_BASE_URL is no URL")
	}
	api := jsonClient{base: strings.TrimRight(d.Config.Sandbox.APIBaseURL, "/"), http: newHTTP(), quota: quotaOfOpenHands, now: d.Now}
	c := d.Config.Dispatch
	return &openhands{
		api: api, log: d.Log, tries: max(c.RateLimitMaxRetries, 1), minWait: c.RateLimitMinWait, maxWait: c.RateLimitMaxWait,
		keys: &mintedKeys{
			api: api, service: d.Config.Auth.ServiceKey, store: d.Keys, log: d.Log, now: d.Now, users: map[sandbox.Owner]*userKey{},
		},
	}, nil
}

// quotaOfOpenHands tells a used-up quota from a plain 429.
func quotaOfOpenHands(status int, body []byte) bool {
	return status == http.StatusTooManyRequests &&
		(bytes.Contains(body, []byte("CONCURRENCY_LIMIT_REACHED")) || bytes.Contains(body, []byte("DAILY_SANDBOX_LIMIT_REACHED")))
}

// Capabilities are openhandsCan.
func (b *openhands) Capabilities() sandbox.Capabilities { return openhandsCan }

// call makes a request in the name of owner. A refused key is renewed once.
func (b *openhands) call(ctx context.Context, owner sandbox.Owner, r request, answer any) error {
	key, err := b.keys.of(ctx, owner)
	if err != nil {
		return notAsked(err)
	}
	r.header, r.credential = "Authorization", "Bearer "+key
	err = b.api.do(ctx, r, answer)
	if !errors.Is(err, sandbox.ErrRefused) {
		return err
	}
	if key, err = b.keys.renew(ctx, owner, key); err != nil {
		return notAsked(err)
	}
	r.credential = "Bearer " + key
	if err = b.api.do(ctx, r, answer); errors.Is(err, sandbox.ErrRefused) {
		b.keys.vain(ctx, owner)
	}
	return err
}

// notAsked says that a call was not made for want of a key.
func notAsked(err error) error { return fmt.Errorf("%w: %w", sandbox.ErrNotMade, err) }

// Create makes a box. It has no label and no timers to set, for the API takes neither.
func (b *openhands) Create(ctx context.Context, spec sandbox.Spec, seen func(sandbox.Identity) error) error {
	var made struct {
		ID string `json:"id"`
	}
	err := b.patiently(ctx, func() error {
		return b.call(ctx, spec.Owner, request{method: http.MethodPost, path: "/api/v1/sandboxes", within: createWithin}, &made)
	})
	switch {
	case errors.Is(err, sandbox.ErrGone): // the route is not there: nothing is made, and no box is gone
		answer, _ := errors.AsType[*sandbox.ProviderError](err)
		return fmt.Errorf("create: %w: %w", sandbox.ErrInvalid, answer)
	case err != nil:
		return fmt.Errorf("create: %w", err)
	case !plain(made.ID):
		return fmt.Errorf("create: the answer names no box: %.80q", made.ID)
	}
	id := sandbox.Identity{Kind: models.IdentityBox, ProviderID: made.ID}
	if err := seen(id); err != nil {
		box := sandbox.Ref{WorkspaceID: spec.Label.WorkspaceID, Owner: spec.Owner, Identities: []sandbox.Identity{id}}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), lifecycleWithin)
		defer cancel()
		if deleteErr := b.Delete(stop, box); deleteErr != nil {
			err = errors.Join(err, fmt.Errorf("delete what was made: %w", deleteErr))
		}
		return err
	}
	return nil
}

// patiently repeats a call that is answered by a plain 429, which made nothing: as long as the provider asks for, else with
// doubled waits within the bounds; never past the end of ctx.
func (b *openhands) patiently(ctx context.Context, call func() error) error {
	for try := 1; ; try++ {
		err := call()
		answer, ok := errors.AsType[*sandbox.ProviderError](err)
		if !ok || answer.Status != http.StatusTooManyRequests || errors.Is(err, sandbox.ErrQuota) {
			return err
		}
		wait := max(min(max(time.Second<<min(try, 16), b.minWait), b.maxWait), answer.RetryAfter)
		if deadline, bounded := ctx.Deadline(); try >= b.tries || bounded && time.Until(deadline) < wait {
			return fmt.Errorf("%w: %w", sandbox.ErrNotMade, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", sandbox.ErrNotMade, errors.Join(ctx.Err(), err))
		}
	}
}

// cloudBox is a sandbox as the API shows it. Key and addresses are null while it does not run.
type cloudBox struct {
	ID      string  `json:"id"`
	Status  string  `json:"status"`
	Key     *string `json:"session_api_key"`
	Exposed []struct {
		Name string `json:"name"`
		URL  string `json:"url"`
	} `json:"exposed_urls"`
	Detail    json.RawMessage `json:"status_detail"`
	CreatedAt *time.Time      `json:"created_at"`
}

// openhandsStates are the states of a box, by the API's words.
var openhandsStates = map[string]models.Observed{
	"STARTING": models.SeenProvisioning, "RUNNING": models.SeenRunning, "PAUSED": models.SeenSuspended,
	"ERROR": models.SeenFailed, "MISSING": models.SeenMissing,
}

// observation is what a shown box says. A word that is not known says nothing: it is an error.
func (c *cloudBox) observation() (sandbox.Observation, error) {
	state, known := openhandsStates[c.Status]
	if !known {
		return sandbox.Observation{}, fmt.Errorf("box %s has the unknown status %.40q", c.ID, c.Status)
	}
	obs := sandbox.Observation{State: state, Identity: sandbox.Identity{Kind: models.IdentityBox, ProviderID: c.ID}}
	if c.Key != nil {
		obs.Identity.Key = *c.Key
	}
	for _, e := range c.Exposed {
		if e.Name == "AGENT_SERVER" {
			obs.Identity.URL = strings.TrimRight(e.URL, "/")
		}
	}
	if detail := string(c.Detail); detail != "" && detail != "null" {
		obs.Detail = sandbox.DetailClass(strings.Trim(detail, `"`))
	}
	return obs, nil
}

// Inspect looks at the newest box by the batch route, the only one that tells a box that is gone from a failure.
func (b *openhands) Inspect(ctx context.Context, box sandbox.Ref) (sandbox.Observation, error) {
	named, ok := box.Newest(models.IdentityBox)
	if !ok {
		return sandbox.Observation{}, sandbox.ErrGone
	}
	return b.look(ctx, box.Owner, named.ProviderID)
}

func (b *openhands) look(ctx context.Context, owner sandbox.Owner, id string) (sandbox.Observation, error) {
	var list []*cloudBox
	err := b.call(ctx, owner, request{
		method: http.MethodGet, path: "/api/v1/sandboxes", query: url.Values{"id": {id}}, within: lifecycleWithin,
	}, &list)
	switch {
	case errors.Is(err, sandbox.ErrGone): // this route answers null for a box that is gone; 404 is something else
		answer, _ := errors.AsType[*sandbox.ProviderError](err)
		return sandbox.Observation{}, fmt.Errorf("look at box %s: %w", id, answer)
	case err != nil:
		return sandbox.Observation{}, fmt.Errorf("look at box %s: %w", id, err)
	case len(list) != 1:
		return sandbox.Observation{}, fmt.Errorf("look at box %s: the answer has %d entries", id, len(list))
	case list[0] == nil:
		return sandbox.Observation{}, fmt.Errorf("box %s: %w", id, sandbox.ErrGone)
	case list[0].ID != id:
		return sandbox.Observation{}, fmt.Errorf("look at box %s: the answer is about another one", id)
	}
	return list[0].observation()
}

// Suspend pauses the box (S1-040).
func (b *openhands) Suspend(ctx context.Context, box sandbox.Ref, _ func(sandbox.Identity) error) error {
	return b.change(ctx, box, "pause", models.SeenSuspended)
}

// Resume starts the box again; it gets another key, which Inspect shows (S1-047).
func (b *openhands) Resume(ctx context.Context, box sandbox.Ref, _ func(sandbox.Identity) error) error {
	return b.change(ctx, box, "resume", models.SeenRunning)
}

// change calls a route that answers 404 for an unknown box, for one in the wrong state and for its upstream's failures: only a
// second look tells them apart (S1-042).
func (b *openhands) change(ctx context.Context, box sandbox.Ref, action string, wanted models.Observed) error {
	named, ok := box.Newest(models.IdentityBox)
	if !ok || !plain(named.ProviderID) {
		return sandbox.ErrGone
	}
	path := "/api/v1/sandboxes/" + named.ProviderID + "/" + action
	err := b.call(ctx, box.Owner, request{method: http.MethodPost, path: path, within: lifecycleWithin}, nil)
	if err == nil {
		b.log.InfoContext(ctx, "sandbox operation accepted", "operation", action, "sandbox_id", named.ProviderID)
		return nil
	}
	answer, conflict := conflict(err)
	if conflict {
		return fmt.Errorf("%s box %s: %w: %w", action, named.ProviderID, sandbox.ErrBusy, answer)
	}
	if !errors.Is(err, sandbox.ErrGone) {
		return fmt.Errorf("%s box %s: %w", action, named.ProviderID, err)
	}
	b.log.InfoContext(ctx, "sandbox operation answered 404", "operation", action, "sandbox_id", named.ProviderID)
	obs, lookErr := b.look(ctx, box.Owner, named.ProviderID)
	switch {
	case lookErr != nil:
		return fmt.Errorf("%s box %s answered 404: %w", action, named.ProviderID, lookErr)
	case obs.State == wanted:
		return nil
	case obs.State == models.SeenMissing:
		return fmt.Errorf("%s box %s: %w", action, named.ProviderID, sandbox.ErrGone)
	}
	return fmt.Errorf("%s box %s, which is shown %s: %w", action, named.ProviderID, obs.State, answer)
}

// conflict returns the provider's answer in err, and whether it is about the box's state. One to a mint is not.
func conflict(err error) (answer *sandbox.ProviderError, is bool) {
	answer, _ = errors.AsType[*sandbox.ProviderError](err)
	return answer, answer != nil && answer.Status == http.StatusConflict && !errors.Is(err, sandbox.ErrNotMade)
}

// Delete removes every named box. The id is sent in path and query, because the handler has wanted either over time. A 404
// is ErrGone here and proves nothing: Capabilities.FalseGone (S1-035, S1-050).
func (b *openhands) Delete(ctx context.Context, box sandbox.Ref) error {
	gone, all := 0, 0
	for _, i := range box.Identities {
		if i.Kind != models.IdentityBox {
			continue
		}
		all++
		err := b.deleteOne(ctx, box.Owner, i.ProviderID)
		if errors.Is(err, sandbox.ErrGone) {
			gone++
			continue
		}
		if err != nil {
			return fmt.Errorf("delete box %s: %w", i.ProviderID, err)
		}
	}
	if gone == all {
		return sandbox.ErrGone
	}
	return nil
}

func (b *openhands) deleteOne(ctx context.Context, owner sandbox.Owner, id string) error {
	if !plain(id) {
		return sandbox.ErrGone
	}
	err := b.call(ctx, owner, request{
		method: http.MethodDelete, path: "/api/v1/sandboxes/" + id, query: url.Values{"sandbox_id": {id}}, within: lifecycleWithin,
	}, nil)
	if answer, conflict := conflict(err); conflict {
		return fmt.Errorf("%w: %w", sandbox.ErrBusy, answer)
	}
	if err != nil {
		return err
	}
	obs, err := b.look(ctx, owner, id) // accepted is not gone
	switch {
	case errors.Is(err, sandbox.ErrGone), err == nil && obs.State == models.SeenMissing:
		return nil
	case err != nil:
		return fmt.Errorf("accepted, but a second look failed: %w", err)
	}
	return fmt.Errorf("accepted, but shown %s: %w", obs.State, sandbox.ErrBusy)
}

// environment is what the contract gives a command in a box, beside what every run gets (contract section 4.3).
func (b *openhands) environment(ctx context.Context, owner sandbox.Owner) (map[string]string, error) {
	key, err := b.keys.of(ctx, owner)
	if err != nil {
		return nil, err
	}
	return map[string]string{"OPENHANDS_API_KEY": key, "OPENHANDS_CLOUD_API_URL": b.api.base}, nil
}

// Contract returns what the provider's own contract puts into the environment of a command, or nil where boxes get the run's
// token (scheduler.Dispatch.Contract).
func Contract(b sandbox.Backend) func(context.Context, sandbox.Owner) (map[string]string, error) {
	if cloud, ok := b.(*openhands); ok {
		return cloud.environment
	}
	return nil
}

var plainID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$`)

// plain reports whether a text can be the id of a box: nothing that would mean more in a path.
func plain(id string) bool { return plainID.MatchString(id) }
