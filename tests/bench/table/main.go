// Command table reads what benchmarks printed, several times over, and writes the medians of their figures as a table into a
// document, between two marks: table DOCUMENT < OUTPUT. What else the output says before the first benchmark is left out; the
// facts about the machine come from the environment variable FACTS.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The table stands between these lines of the document.
const (
	begin = "<!-- measured: begin -->"
	end   = "<!-- measured: end -->"
)

func main() {
	if err := run(os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(args []string, output io.Reader) error {
	if len(args) != 1 {
		return errors.New("want the name of one document")
	}
	figures, err := read(output)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has no place for the table", args[0])
	}
	table := begin + "\n\n" + os.Getenv("FACTS") + "\n\n" + figures.table() + "\n" + end
	return os.WriteFile(args[0], []byte(before+table+after), 0o644)
}

// measured is the figures by benchmark and unit, in the order in which they were met.
type measured struct {
	names  []string
	units  map[string][]string
	values map[string][]float64 // by benchmark and unit
}

// read takes the lines of benchmarks: a name, how often, and pairs of value and unit.
func read(output io.Reader) (measured, error) {
	m := measured{units: map[string][]string{}, values: map[string][]float64{}}
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(words[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 { // the number of processors
			name = name[:i]
		}
		if !slices.Contains(m.names, name) {
			m.names = append(m.names, name)
		}
		for i := 2; i+1 < len(words); i += 2 {
			value, err := strconv.ParseFloat(words[i], 64)
			if err != nil {
				return m, fmt.Errorf("%s: %w", name, err)
			}
			unit := words[i+1]
			if unit == "ns/op" || unit == "B/op" || unit == "allocs/op" {
				continue // with what was built up before it was measured
			}
			if !slices.Contains(m.units[name], unit) {
				m.units[name] = append(m.units[name], unit)
			}
			m.values[name+" "+unit] = append(m.values[name+" "+unit], value)
		}
	}
	return m, lines.Err()
}

// table is one row a figure: median, least and most of its runs, and how many times that of Python's is ours, where both were
// measured.
func (m measured) table() string {
	var text strings.Builder
	text.WriteString("| benchmark | figure | median | least | most | runs | Python / ours |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |\n")
	for _, name := range m.names {
		for _, unit := range m.units[name] {
			values := slices.Sorted(slices.Values(m.values[name+" "+unit]))
			fmt.Fprintf(&text, "| %s | %s | %s | %s | %s | %d | %s |\n", name, unit,
				number(median(values)), number(values[0]), number(values[len(values)-1]), len(values), m.ratio(name, unit))
		}
	}
	return text.String()
}

func (m measured) ratio(name, unit string) string {
	base, ours := strings.CutSuffix(name, "/ours")
	theirs := slices.Sorted(slices.Values(m.values[base+"/python "+unit]))
	if !ours || len(theirs) == 0 {
		return ""
	}
	return number(median(theirs) / median(slices.Sorted(slices.Values(m.values[name+" "+unit]))))
}

func median(sorted []float64) float64 { return sorted[len(sorted)/2] }

func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
