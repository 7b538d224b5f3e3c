//go:build !race

package sandbox_test

// Volumes of what must hold for many boxes.
const (
	dueBoxes  = 200
	sickBoxes = 30
)
