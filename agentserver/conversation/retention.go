package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Policies of a Retention.
const (
	Default = "default" // as the server is configured
	Days    = "days"    // after so many days of running time without activity
	OnStop  = "on_stop" // as soon as it has stopped
)

// MaxDays is the longest retention that can be asked for.
const MaxDays = 36500

// retentionFile lies beside the history of a conversation.
const retentionFile = "retention.json"

// ErrRetention means that a retention is none of the three there are (S0-067).
var ErrRetention = errors.New(`retention is not "default", "days" with days from 1 to 36500, or "on_stop"`)

// Retention is how long a conversation's runtime is kept when nobody uses it (S0-067). The zero value is the default.
type Retention struct {
	Policy string `json:"policy"`
	Days   *int   `json:"days"` // only with the policy days
}

// Check returns the retention with its policy filled in, or ErrRetention.
func (r Retention) Check() (Retention, error) {
	switch {
	case r.Policy == "" && r.Days == nil:
		return Retention{Policy: Default}, nil
	case (r.Policy == Default || r.Policy == OnStop) && r.Days == nil:
		return r, nil
	case r.Policy == Days && r.Days != nil && *r.Days >= 1 && *r.Days <= MaxDays:
		return r, nil
	}
	return Retention{}, ErrRetention
}

// ParseRetention reads a retention from JSON: an object of policy and days, and nothing else.
func ParseRetention(value any) (Retention, error) {
	object, ok := value.(map[string]any)
	if !ok {
		return Retention{}, ErrRetention
	}
	var r Retention
	for name, member := range object {
		switch v := member.(type) {
		case nil:
			ok = name == "days"
		case string:
			r.Policy, ok = v, name == "policy"
		case json.Number:
			n, err := v.Int64()
			days := int(n)
			r.Days, ok = &days, err == nil && name == "days" && n >= 1 && n <= MaxDays
		default:
			ok = false
		}
		if !ok {
			return Retention{}, ErrRetention
		}
	}
	if r.Policy == "" {
		return Retention{}, ErrRetention
	}
	return r.Check()
}

// After is how long nobody may have used the conversation before its runtime goes; ok is false when it never does.
// fallback is the server's own setting in days, 0 for never.
func (r Retention) After(fallback int) (after time.Duration, ok bool) {
	const day = 24 * time.Hour
	switch {
	case r.Policy == OnStop:
		return 0, true
	case r.Policy == Days && r.Days != nil:
		return time.Duration(*r.Days) * day, true
	case r.Policy == Default && fallback > 0:
		return time.Duration(fallback) * day, true
	}
	return 0, false
}

// Retention reads what was set for a conversation; the default when nothing was. What cannot be read is an error: the
// caller then keeps the runtime.
func (s *Store) Retention(id string) (Retention, error) {
	text, err := s.read(id, retentionFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Retention{Policy: Default}, nil
	}
	if err != nil {
		return Retention{}, fmt.Errorf("retention: %w", err)
	}
	var r Retention
	if err := json.Unmarshal(text, &r); err != nil {
		return Retention{}, fmt.Errorf("retention: %w", err)
	}
	return r.Check()
}

// SetRetention stores a checked retention beside the history. fs.ErrNotExist: there is no such conversation.
func (s *Store) SetRetention(id string, r Retention) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("retention: %w", err)
	}
	if err := s.write(id, retentionFile, text); err != nil {
		return fmt.Errorf("retention: %w", err)
	}
	return nil
}
