//go:build !race

package modelstest

const volumeDivisor = 1
