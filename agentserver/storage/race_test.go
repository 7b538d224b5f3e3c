//go:build race

package storage

// The race detector makes file-bound cases many times slower.
const hostileSwaps = 500
