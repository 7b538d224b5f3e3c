package config

import (
	"fmt"
	"strings"
)

// Problem is one setting that cannot be used.
type Problem struct {
	Name  string // of the variable
	Value string // as found, cut short, secrets hidden; quoted when shown
	Set   bool   // false: the variable is missing
	Want  string // what is accepted
}

// String is the problem in one line.
func (p Problem) String() string {
	if !p.Set {
		return fmt.Sprintf("%s is not set: %s", p.Name, p.Want)
	}
	return fmt.Sprintf("%s=%q: %s", p.Name, p.Value, p.Want)
}

// Error is every problem of a configuration at once.
type Error struct {
	Problems []Problem
}

// Error implements error: several lines, made for people.
func (e *Error) Error() string { return strings.TrimSuffix(Report(e.Problems, nil), "\n") }

// Report writes problems and warnings as they are shown on standard error.
func Report(problems []Problem, warnings []string) string {
	var b strings.Builder
	b.WriteString("configuration: " + count(len(problems), "problem"))
	if len(warnings) > 0 {
		b.WriteString(", " + count(len(warnings), "warning"))
	}
	b.WriteByte('\n')
	for _, p := range problems {
		b.WriteString("  " + p.String() + "\n")
	}
	for _, w := range warnings {
		b.WriteString("  warning: " + w + "\n")
	}
	return b.String()
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// shown cuts a value short for a message.
func shown(value string) string {
	const most = 120
	if len(value) > most {
		return strings.ToValidUTF8(value[:most], "") + "…"
	}
	return value
}
