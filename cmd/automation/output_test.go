package main

import (
	"bytes"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestTablesFitTheTerminal(t *testing.T) {
	for width := 20; width < 120; width++ {
		table := newTable("ID", "NAME", "STATE", "WHY")
		table.text, table.rest = []string{"NAME", "WHY"}, []string{"WHY", "STATE"}
		table.row("01910001-0000", "nächtlicher Bericht über alles", "suspended", "a long\ntext with   a break")
		table.row("01910002-0000", "", "running", "")
		var out bytes.Buffer
		require.NoError(t, table.write(&out, width))
		for line := range bytes.Lines(out.Bytes()) {
			require.LessOrEqual(t, utf8.RuneCount(bytes.TrimRight(line, "\n")), max(width, 13+gap+leastText), "%d", width)
			require.True(t, bytes.HasPrefix(line, []byte("ID")) || bytes.HasPrefix(line, []byte("0191000")), "ids are never cut: %s", line)
		}
		require.Contains(t, out.String(), "01910001-0000")
	}
	wide := newTable("ID", "WHY")
	wide.row("1", "what is written to a pipe is whole, however long it is")
	var out bytes.Buffer
	require.NoError(t, wide.write(&out, 0))
	require.Equal(t, "ID  WHY\n1   what is written to a pipe is whole, however long it is\n", out.String())
}

func TestWhatBoxesWroteCannotSteerTheTerminal(t *testing.T) {
	const hostile = "\x1b]0;title\x07\x1b[2Jred\u009b31m\u202Eoops\r\x00 ünd 💥\nnext"
	table := newTable("ERROR")
	table.row(hostile)
	var out bytes.Buffer
	require.NoError(t, table.write(&out, 0))
	require.NoError(t, facts(&out, "error", hostile, "nothing", "\x1b\x07"))
	s := &session{io: Streams{Err: &out}}
	s.done("%s", hostile)
	const left = "]0;title[2Jred31moops ünd 💥"
	require.Equal(t, "ERROR\n"+left+" next\nerror  "+left+" next\n"+left+"\nnext\n", out.String())
}

func TestIdsAreShortenedSoThatTheyDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		ids  []string
		want int
	}{
		"none":               {nil, leastID},
		"one":                {[]string{"01910001-0000-7000-8000-000000000000"}, leastID},
		"apart":              {[]string{"01910001-0000-7000-8000-000000000000", "01910002-0000-7000-8000-000000000000"}, leastID},
		"of one millisecond": {[]string{"01910001-0000-7000-8000-000000000000", "01910001-0000-7010-8000-000000000000"}, 17},
		"the same twice":     {[]string{"01910001-0000-7000-8000-000000000000", "01910001-0000-7000-8000-000000000000"}, leastID},
		"empty ones":         {[]string{"", ""}, leastID},
	} {
		require.Equal(t, c.want, shorten(c.ids), name)
	}
}

func TestTimesAndSizesAreShownInTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59 * time.Second: "59s", time.Minute: "1m", 61 * time.Second: "1m1s",
		2*time.Hour + 30*time.Minute: "2h30m", 25 * time.Hour: "1d1h", 400 * day: "400d",
	} {
		require.Equal(t, want, span(d))
	}
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	past, ahead := now.Add(-4*time.Minute), now.Add(4*time.Minute)
	require.Equal(t, "4m ago", ago(&past, now))
	require.Equal(t, "overdue by 4m", until(&past, now))
	require.Equal(t, "in 4m", until(&ahead, now))
	require.Empty(t, ago(nil, now)+until(nil, now))
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 25_000_000: "25.0 MB", 1 << 62: "4.6 EB"} {
		require.Equal(t, want, size(n))
	}
}

func TestTimeSpansNeedAUnit(t *testing.T) {
	for word, want := range map[string]time.Duration{
		"+2h30m": 150 * time.Minute, "90s": 90 * time.Second, "+3d": 3 * day, "1d12h": 36 * time.Hour,
	} {
		got, err := parseSpan(word)
		require.NoError(t, err, word)
		require.Equal(t, want, got, word)
	}
	for _, word := range []string{"", "+", "90", "+90", "-2h", "+-2h", "d", "-1d", "1d-2h", "0s", "1ms", "2 h", "1.5d", "99999999d", "soon"} {
		_, err := parseSpan(word)
		require.Equal(t, exitUsage, codeOf(err), word)
	}
}
