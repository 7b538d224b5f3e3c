//go:build race

package command

// scale is how much smaller volume cases are: the race detector makes them so much slower.
const scale = 100
