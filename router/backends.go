package router

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"automation/models"
	"automation/sandbox"
)

// backendList is the answer of GET /v1/backends.
type backendList struct {
	Backends []backendObject `json:"backends"`
	Total    int             `json:"total"`
}

// backendObject is a provider: what it can do as data, whether this service is configured for it and starts new runs on it,
// and the organization's boxes on it by observed state (states without a box are left out).
type backendObject struct {
	Name         string                  `json:"name"`
	Configured   bool                    `json:"configured"`
	NewRuns      bool                    `json:"new_runs"`
	Capabilities capabilityObject        `json:"capabilities"`
	Sandboxes    map[models.Observed]int `json:"sandboxes"`
}

// capabilityObject is sandbox.Capabilities with its durations in seconds.
type capabilityObject struct {
	Suspend       sandbox.SuspendKind `json:"suspend"`
	MemoryKept    bool                `json:"memory_kept"`
	SameIdentity  bool                `json:"same_identity"`
	List          bool                `json:"list"`
	ExactList     bool                `json:"exact_list"`
	Labels        bool                `json:"labels"`
	LastActivity  bool                `json:"last_activity"`
	NativeIdle    timerObject         `json:"native_idle"`
	NativeExpiry  timerObject         `json:"native_expiry"`
	LookingWakes  bool                `json:"looking_wakes"`
	LookingCounts bool                `json:"looking_counts"`
	KeepsHistory  bool                `json:"keeps_history"`
	SuspendedCost string              `json:"suspended_cost"`
	Placed        bool                `json:"placed"`
	FalseGone     bool                `json:"false_gone"`
	WakeSuspends  bool                `json:"wake_suspends"`
}

// timerObject is a provider's own timer; null: not known, or no limit.
type timerObject struct {
	Supported      bool    `json:"supported"`
	Action         *string `json:"action"`
	DefaultSeconds *int64  `json:"default_seconds"`
	MaxSeconds     *int64  `json:"max_seconds"`
}

// listBackends is GET /v1/backends: every known provider, and every one that has boxes.
func (s *server) listBackends(w http.ResponseWriter, r *http.Request, who Caller) error {
	counts, err := s.Store.CountSandboxes(r.Context(), who.OrgID)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(counts))
	names = slices.Compact(slices.Sorted(slices.Values(append(names, s.Backends.Known...))))
	list := make([]backendObject, 0, len(names))
	for _, name := range names {
		o := backendObject{
			Name: name, Configured: slices.Contains(s.Backends.Configured, name), NewRuns: name == s.Backends.NewRuns,
			Capabilities: showCapabilities(s.Capabilities(name)), Sandboxes: counts[name],
		}
		if o.Sandboxes == nil {
			o.Sandboxes = map[models.Observed]int{}
		}
		list = append(list, o)
	}
	return ok(w, backendList{list, len(list)})
}

func showCapabilities(c sandbox.Capabilities) capabilityObject {
	return capabilityObject{
		Suspend: c.Suspend, MemoryKept: c.MemoryKept(), SameIdentity: c.SameIdentity, List: c.List, ExactList: c.ExactList,
		Labels: c.Labels, LastActivity: c.LastActivity, NativeIdle: showTimer(c.NativeIdle), NativeExpiry: showTimer(c.NativeExpiry),
		LookingWakes: c.LookingWakes, LookingCounts: c.LookingCounts, KeepsHistory: c.KeepsHistory, SuspendedCost: c.SuspendedCost,
		Placed: c.Placed, FalseGone: c.FalseGone, WakeSuspends: c.WakeSuspends,
	}
}

func showTimer(t sandbox.Timer) timerObject {
	seconds := func(d time.Duration) *int64 {
		if d == 0 {
			return nil
		}
		n := int64(d / time.Second)
		return &n
	}
	o := timerObject{Supported: t.Supported, DefaultSeconds: seconds(t.Default), MaxSeconds: seconds(t.Max)}
	if t.Action != "" {
		o.Action = &t.Action
	}
	return o
}
