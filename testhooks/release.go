//go:build !testhooks

package testhooks

// Reached does nothing in a release.
func Reached(Point) {}
