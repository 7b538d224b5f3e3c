// Package tests holds what is tested from outside: the built binary on both databases, and the rules that the source itself has
// to keep (layout_test.go, statements_test.go).
package tests
