// Package bench holds the benchmarks that compare this repository with what it stands beside.
package bench
