package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// format is the value of --output.
type format string

// The formats.
const (
	asTable format = "table"
	asJSON  format = "json"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Set implements pflag.Value.
func (f *format) Set(word string) error {
	if *f = format(word); *f != asTable && *f != asJSON {
		return fmt.Errorf("want table or json")
	}
	return nil
}

// Type implements pflag.Value.
func (*format) Type() string { return "table|json" }

// outputFlag adds --output to c and its subcommands.
func outputFlag(c *cobra.Command) *format {
	f := asTable
	c.PersistentFlags().VarP(&f, "output", "o", "how to show: table, for people, or json, as the service answered")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// writeJSON writes v indented.
func writeJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return err
	}
	pretty.WriteByte('\n')
	_, err = pretty.WriteTo(w)
	return err
}

// table is rows of cells under a head.
type table struct {
	head []string
	rows [][]string
	text []string // columns of free text, which are cut first on a narrow terminal
	rest []string // columns that a narrow terminal can do without, the least needed first
}

func newTable(head ...string) *table { return &table{head: head} }

// row adds one; cells are of one line, empty ones are shown as a dash.
func (t *table) row(cells ...string) {
	for i, cell := range cells {
		if cell = oneLine(cell); cell == "" {
			cell = "-"
		}
		cells[i] = cell
	}
	t.rows = append(t.rows, cells)
}

// oneLine is a text as it is shown among others: what callers and boxes wrote can neither break the line nor steer the terminal.
func oneLine(text string) string { return strings.Join(strings.Fields(printable(text)), " ") }

// printable is a text without what steers a terminal, but for ends of lines and tabs.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) && r != '\r' {
			return r
		}
		return -1
	}, text)
}

// gap is the space between columns, leastText what is left of a column of free text at least.
const (
	gap       = 2
	leastText = 8
)

// write writes the table, on a terminal no wider than that is; width 0 means any.
func (t *table) write(w io.Writer, width int) error {
	widths := t.widths()
	for width > 0 {
		if t.squeeze(widths, width); total(widths) <= width || len(t.rest) == 0 {
			break
		}
		t.drop(t.rest[0])
		t.rest, widths = t.rest[1:], t.widths()
	}
	tabs := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, row := range t.all() {
		for i := range row {
			if i > 0 {
				fmt.Fprint(tabs, "\t")
			}
			fmt.Fprint(tabs, cut(row[i], widths[i]))
		}
		fmt.Fprintln(tabs)
	}
	return tabs.Flush()
}

func (t *table) all() [][]string { return append([][]string{t.head}, t.rows...) }

// drop removes a column.
func (t *table) drop(name string) {
	i := slices.Index(t.head, name)
	if i < 0 {
		return
	}
	t.head = slices.Delete(slices.Clone(t.head), i, i+1)
	for n, row := range t.rows {
		t.rows[n] = slices.Delete(row, i, i+1)
	}
}

// widths are those that the columns need.
func (t *table) widths() []int {
	widths := make([]int, len(t.head))
	for _, row := range t.all() {
		for i := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	return widths
}

// total is how wide a table is.
func total(widths []int) int {
	sum := -gap
	for _, w := range widths {
		sum += w + gap
	}
	return sum
}

// squeeze takes from the widest column of free text until the table fits or none has anything to give.
func (t *table) squeeze(widths []int, width int) {
	for total(widths) > width {
		widest := -1
		for i := range widths {
			if slices.Contains(t.text, t.head[i]) && widths[i] > leastText && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// cut shortens a text to width characters.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// width is that of the terminal that Out is, or what COLUMNS says; 0: it is none, and nothing is cut.
func (io Streams) width() int {
	for _, pair := range io.Env {
		if text, ok := strings.CutPrefix(pair, "COLUMNS="); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				return n
			}
		}
	}
	f, ok := io.Out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// leastID is how much of an id is shown at least. Ids begin with their time; so much of one tells milliseconds apart.
const leastID = 13

// shorten returns how many characters of the ids tell them apart.
func shorten(ids []string) int {
	n := leastID
	for grown := true; grown; {
		grown = false
		seen := map[string]string{}
		for _, id := range ids {
			short := id[:min(n, len(id))]
			if other, taken := seen[short]; taken && other != id {
				n, grown = n+1, true
				break
			}
			seen[short] = id
		}
	}
	return n
}

// head is the first n characters of an id.
func head(id string, n int) string { return id[:min(n, len(id))] }

// ago is how long something is past, in one or two units; "" for nil.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return span(now.Sub(*t)) + " ago"
}

// until is how long something is ahead, or by how much it is overdue; "" for nil.
func until(t *time.Time, now time.Time) string {
	switch {
	case t == nil:
		return ""
	case !t.After(now):
		return "overdue by " + span(now.Sub(*t))
	}
	return "in " + span(t.Sub(now))
}

// span shows a duration in its two largest units.
func span(d time.Duration) string {
	d = max(d, 0)
	const day = 24 * time.Hour
	two := func(n time.Duration, unit string, rest time.Duration, smaller string) string {
		if rest == 0 {
			return fmt.Sprintf("%d%s", n, unit)
		}
		return fmt.Sprintf("%d%s%d%s", n, unit, rest, smaller)
	}
	switch {
	case d >= day:
		return two(d/day, "d", d%day/time.Hour, "h")
	case d >= time.Hour:
		return two(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	case d >= time.Minute:
		return two(d/time.Minute, "m", d%time.Minute/time.Second, "s")
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// size shows a number of bytes.
func size(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, units := float64(n), "kMGTPE"
	i := -1
	for value >= 1000 && i < len(units)-1 {
		value /= 1000
		i++
	}
	return fmt.Sprintf("%.1f %cB", value, units[i])
}

// facts writes name and value pairs, one a line; pairs without a value are left out.
func facts(w io.Writer, pairs ...string) error {
	tabs := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := oneLine(pairs[i+1]); value != "" {
			fmt.Fprintf(tabs, "%s\t%s\n", pairs[i], value)
		}
	}
	return tabs.Flush()
}
