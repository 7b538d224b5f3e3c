//go:build !testhooks

package main

import (
	"automation/loop"
	"automation/models"
)

// testClock leaves the clock of a release alone.
type testClock struct{}

func openTestClock() (testClock, error) { return testClock{}, nil }

func (testClock) options() []models.Option { return nil }

func (a *App) underTestClock(duties []loop.Loop) []loop.Loop { return duties }
