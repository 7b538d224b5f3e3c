//go:build !race

package command

const scale = 1
