//go:build !race

package storage

const hostileSwaps = 10000
