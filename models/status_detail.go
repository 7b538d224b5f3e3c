package models

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// StatusDetail explains why a run is in its status: the contract's status_detail (section 3.1).
type StatusDetail struct {
	Phase       string    `json:"phase"` // dispatch, execution, verification or callback
	Kind        string    `json:"kind"`
	Detail      string    `json:"detail"`
	Transient   bool      `json:"transient"`
	Fingerprint string    `json:"fingerprint"` // set by Seen
	FirstSeenAt time.Time `json:"first_seen_at"`
	LastSeenAt  time.Time `json:"last_seen_at"`
	Count       int       `json:"count"`
	Source      string    `json:"source,omitempty"`
	Operation   string    `json:"operation,omitempty"`
	Code        string    `json:"code,omitempty"`
	StatusCode  int       `json:"status_code,omitempty"`

	SandboxStatus       string `json:"sandbox_status,omitempty"`
	SandboxStatusDetail string `json:"sandbox_status_detail,omitempty"`
	Attempts            int    `json:"attempts,omitempty"`
	VerificationOutcome string `json:"verification_outcome,omitempty"`
	FormattedDetail     string `json:"formatted_detail,omitempty"`
	UserAction          string `json:"user_action,omitempty"`

	DisabledDetail json.RawMessage `json:"disabled_detail,omitempty"` // of the automation, on runs skipped for it
}

// Seen returns d as stored at at. The same fingerprint as in previous, the stored value so far, keeps its first_seen_at and
// adds one to its count.
func (d StatusDetail) Seen(at time.Time, previous json.RawMessage) json.RawMessage {
	d.Fingerprint = d.fingerprint()
	d.FirstSeenAt, d.LastSeenAt, d.Count = at, at, 1
	var before StatusDetail
	if json.Unmarshal(previous, &before) == nil && before.Fingerprint == d.Fingerprint {
		d.FirstSeenAt, d.Count = before.FirstSeenAt, before.Count+1
	}
	raw, err := json.Marshal(d)
	if err != nil {
		return nil // strings, numbers and times of this century always encode
	}
	return raw
}

// fingerprint names the cause without its circumstances. A failing call looks the same in every phase of a run.
func (d StatusDetail) fingerprint() string {
	parts := []string{d.Phase, d.Source, d.Operation, d.Kind}
	switch d.Kind {
	case "rate_limited", "server_error", "timeout", "transport":
		if d.Transient {
			parts = parts[1:]
		}
	}
	if d.StatusCode != 0 {
		parts = append(parts, strconv.Itoa(d.StatusCode))
	}
	kept := parts[:0]
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, ":")
}
