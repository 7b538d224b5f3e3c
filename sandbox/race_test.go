//go:build race

package sandbox_test

// Volumes under the race detector, where SQLite is some thirty times slower.
const (
	dueBoxes  = 20
	sickBoxes = 3
)
