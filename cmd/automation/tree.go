package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// branch is one name of a tree with what is below it. Its bytes are those of everything below.
type branch struct {
	name  string
	bytes int64
	note  string
	below []*branch
}

func newBranch(name string) *branch { return &branch{name: name} }

// add adds bytes at a path below b, whose last name gets the note.
func (b *branch) add(path []string, bytes int64, note string) {
	b.bytes += bytes
	at := b
	for _, name := range path {
		at = at.child(name)
		at.bytes += bytes
	}
	at.note = note
}

// child is the branch of a name right below b, made where there is none.
func (b *branch) child(name string) *branch {
	for _, child := range b.below {
		if child.name == name {
			return child
		}
	}
	child := newBranch(name)
	b.below = append(b.below, child)
	return child
}

// write writes the tree, the largest first. Names with one name below them share its line.
func (b *branch) write(w io.Writer) error {
	tabs := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	b.line(tabs, "")
	b.children(tabs, "")
	return tabs.Flush()
}

func (b *branch) line(w io.Writer, before string) {
	fmt.Fprintln(w, strings.TrimRight(before+b.name+"\t"+size(b.bytes)+"\t"+b.note, "\t"))
}

func (b *branch) children(w io.Writer, before string) {
	sorted := slices.Clone(b.below)
	slices.SortStableFunc(sorted, func(x, y *branch) int { return cmp.Or(cmp.Compare(y.bytes, x.bytes), cmp.Compare(x.name, y.name)) })
	for i, child := range sorted {
		for len(child.below) == 1 && child.note == "" {
			only := *child.below[0]
			only.name = child.name + "/" + only.name
			child = &only
		}
		corner, further := "├── ", "│   "
		if i == len(sorted)-1 {
			corner, further = "└── ", "    "
		}
		child.line(w, before+corner)
		child.children(w, before+further)
	}
}
