package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	require.NoError(t, err)
	return at.UTC()
}

// fires returns the first n fires after from, as RFC 3339.
func fires(t *testing.T, schedule, zone, from string, n int) []string {
	t.Helper()
	at := instant(t, from)
	var out []string
	for range n {
		next, ok := NextFire(schedule, zone, at)
		if !ok {
			break
		}
		require.True(t, next.After(at), "fires move forward")
		require.Equal(t, time.UTC, next.Location())
		out = append(out, next.Format(time.RFC3339))
		at = next
	}
	return out
}

func TestNextFire(t *testing.T) {
	cases := []struct {
		name, schedule, zone, from string
		want                       []string
	}{
		{
			"BR-08 a time inside the gap fires once, right after it",
			"30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z",
			[]string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"},
		},
		{
			"BR-08 several times inside the gap give one fire",
			"*/15 2 * * *", "America/New_York", "2026-03-07T12:00:00Z",
			[]string{"2026-03-08T07:00:00Z", "2026-03-09T06:00:00Z"},
		},
		{
			"BR-08 a gap that begins at midnight loses no day",
			"0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z",
			[]string{"2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		},
		{
			"a whole day skipped by a zone fires right after it",
			"0 9 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z",
			[]string{"2011-12-29T19:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T19:00:00Z"},
		},
		{
			"a time inside a repeated hour fires the first time round only",
			"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z",
			[]string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"},
		},
		{
			"asked in the second pass of a repeated hour it has fired already",
			"30 1 * * *", "America/New_York", "2026-11-01T06:10:00Z",
			[]string{"2026-11-02T06:30:00Z"},
		},
		{
			"a schedule of every hour follows elapsed time through a repeated hour",
			"*/15 * * * *", "America/New_York", "2026-11-01T05:40:00Z",
			[]string{"2026-11-01T05:45:00Z", "2026-11-01T06:00:00Z", "2026-11-01T06:15:00Z", "2026-11-01T06:30:00Z",
				"2026-11-01T06:45:00Z", "2026-11-01T07:00:00Z"},
		},
		{
			"seconds come last",
			"0 9 * * * 30", "America/New_York", "2026-03-07T12:00:00Z",
			[]string{"2026-03-07T14:00:30Z", "2026-03-08T13:00:30Z"},
		},
		{
			"a schedule fires once a minute at most, at the first second that it names",
			"*/5 * * * * 20,50 *", "UTC", "2026-03-07T12:00:25Z",
			[]string{"2026-03-07T12:05:20Z", "2026-03-07T12:10:20Z"},
		},
		{
			"a schedule of every hour follows elapsed time through a gap",
			"30 * * * *", "America/New_York", "2026-03-08T06:00:00Z",
			[]string{"2026-03-08T06:30:00Z", "2026-03-08T07:30:00Z"},
		},
		{
			"a gap of half an hour",
			"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z",
			[]string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"},
		},
		{
			"every second hour runs once in a repeated hour",
			"0 */2 * * *", "Europe/Berlin", "2026-10-24T23:00:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T03:00:00Z"},
		},
		{"@every follows elapsed time", "@every 90m", "America/New_York", "2026-11-01T05:00:00Z",
			[]string{"2026-11-01T06:30:00Z", "2026-11-01T08:00:00Z"}},
		{"BR-10 29 February stays valid", "0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z",
			[]string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"29 February around a century that has none", "0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z",
			[]string{"2104-02-29T00:00:00Z"}},
		{"weekday 7 is Sunday", "0 0 * * 7", "UTC", "2026-06-01T00:00:00Z", []string{"2026-06-07T00:00:00Z", "2026-06-14T00:00:00Z"}},
		{"a range of weekdays may end with 7", "0 0 * * 6-7", "UTC", "2026-06-01T00:00:00Z",
			[]string{"2026-06-06T00:00:00Z", "2026-06-07T00:00:00Z", "2026-06-13T00:00:00Z"}},
		{"a range of weekdays may end with sun", "0 0 * * fri-sun/2", "UTC", "2026-06-01T00:00:00Z",
			[]string{"2026-06-05T00:00:00Z", "2026-06-07T00:00:00Z", "2026-06-12T00:00:00Z"}},
		{"aliases", "@weekly", "", "2026-06-01T00:00:00Z", []string{"2026-06-07T00:00:00Z"}},
		{"fractions of a second are passed over", "* * * * *", "UTC", "2026-06-01T00:00:59.5Z", []string{"2026-06-01T00:01:00Z"}},
		{"BR-10 an impossible date never fires", "0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z", nil},
		{"BR-10 31 April never fires", "0 0 31 4 *", "Europe/Berlin", "2026-01-01T00:00:00Z", nil},
		{"what cannot be parsed never fires", "TZ=", "UTC", "2026-01-01T00:00:00Z", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, fires(t, c.schedule, c.zone, c.from, len(c.want)))
			if c.want == nil {
				_, ok := NextFire(c.schedule, c.zone, instant(t, c.from))
				require.False(t, ok)
			}
		})
	}
}

// Every fire of a schedule that names its hours falls on its own day, in every zone with daylight saving: once a day, for
// a year, whatever the clocks do.
func TestNextFire_OnceADayEverywhere(t *testing.T) {
	zones := []string{"America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Asia/Beirut", "Africa/Casablanca"}
	for _, zone := range zones {
		for _, schedule := range []string{"0 0 * * *", "30 0 * * *", "30 1 * * *", "30 2 * * *", "59 2 * * *", "0 3 * * *"} {
			loc, err := time.LoadLocation(zone)
			require.NoError(t, err)
			at := time.Date(2024, 1, 1, 12, 0, 0, 0, loc)
			for day := 2; day <= 366; day++ {
				next, ok := NextFire(schedule, zone, at)
				require.True(t, ok)
				want := time.Date(2024, 1, day, 12, 0, 0, 0, loc)
				require.Equal(t, want.Format(time.DateOnly), next.In(loc).Format(time.DateOnly), "%s in %s", schedule, zone)
				at = next
			}
		}
	}
}

func TestValidate(t *testing.T) {
	for _, ok := range [][2]string{
		{"0 9 * * 1-5", "Europe/Berlin"}, {"0 0 29 2 *", "UTC"}, {"@every 1s", ""}, {"@every 1h30m", "UTC"}, {"@daily", ""},
		{"0 0 * jul sun", ""}, {"5,10-20/3 * ? * *", ""}, {" 0 9 * * 1-5 ", ""},
	} {
		require.NoError(t, Validate(ok[0], ok[1]), ok[0])
	}
	for _, c := range []struct{ schedule, zone, field, want string }{
		{"0 0 30 2 *", "UTC", "schedule", "Cron expression cannot produce any future fire times: 0 0 30 2 *"},
		{"0 0 31 4 *", "UTC", "schedule", "Cron expression cannot produce any future fire times: 0 0 31 4 *"},
		{"* * * * *", "Mars/Olympus", "timezone", "Invalid timezone: Mars/Olympus"},
		{"* * * * *", "Local", "timezone", "Invalid timezone: Local"},
		{"", "UTC", "schedule", "Invalid cron expression: "},
		{"nonsense", "UTC", "schedule", "five are needed"},
		{"TZ=", "UTC", "schedule", "time zone belongs"},
		{"CRON_TZ=Europe/Berlin", "UTC", "schedule", "time zone belongs"},
		{"TZ=Europe/Berlin 0 0 * * *", "UTC", "schedule", "time zone belongs"},
		{"@every 0s", "UTC", "schedule", "at least one second"},
		{"@every -5m", "UTC", "schedule", "at least one second"},
		{"@every 999ms", "UTC", "schedule", "at least one second"},
		{"@every 1500ms", "UTC", "schedule", "whole seconds"},
		{"@every", "UTC", "schedule", "wants a duration"},
		{"@every 99999999999h", "UTC", "schedule", "wants a duration"},
		{"@reboot", "UTC", "schedule", "Invalid cron expression: @reboot"},
		{"*/90 * * * *", "UTC", "schedule", "step 90 is wider than the minute"},
		{"*/0 * * * *", "UTC", "schedule", "Invalid cron expression"},
		{"0 0 L * *", "UTC", "schedule", "the last day (L)"},
		{"0 0 * * 5L", "UTC", "schedule", "the last day (L)"},
		{"0 0 L-3 * *", "UTC", "schedule", "the last day (L)"},
		{"0 0 * * 1#2", "UTC", "schedule", "the n-th weekday of a month (#)"},
		{"0 0 15W * *", "UTC", "schedule", "the nearest weekday (W)"},
		{"0 0 * * * 60", "UTC", "schedule", "above maximum"},
		{"0 0 * * * L", "UTC", "schedule", "the last day (L)"},
		{"0 0 * * * 30 2030", "UTC", "schedule", "years cannot be given"},
		{"0 0 * * * 30 * *", "UTC", "schedule", "8 fields"},
		{"0, 0 * * *", "UTC", "schedule", "empty list entry"},
		{"0 0 * * 8", "UTC", "schedule", "Invalid cron expression"},
		{"61 * * * *", "UTC", "schedule", "Invalid cron expression"},
		{"5-1 * * * *", "UTC", "schedule", "Invalid cron expression"},
	} {
		t.Run(c.schedule, func(t *testing.T) {
			err := Validate(c.schedule, c.zone)
			var bad *ScheduleError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, c.field, bad.Field)
			require.Contains(t, err.Error(), c.want)
		})
	}
}

func FuzzNextFire(f *testing.F) {
	for _, s := range []string{"TZ=", "* * * * *", "@every 1s", "0 0 * * 7", ",,,,", "*/7 0-3,5 L W #", "@"} {
		f.Add(s, "America/New_York")
	}
	f.Fuzz(func(t *testing.T, schedule, zone string) {
		from := time.Date(2026, 3, 8, 6, 59, 59, 0, time.UTC)
		if next, ok := NextFire(schedule, zone, from); ok && !next.After(from) {
			t.Fatalf("%q in %q fires at %v, not after %v", schedule, zone, next, from)
		}
	})
}

func TestPlan_Last(t *testing.T) {
	for _, c := range []struct{ schedule, was, now, want string }{
		{"* * * * *", "2026-06-01T00:00:00Z", "2026-06-01T14:00:30Z", "2026-06-01T14:00:00Z"},
		{"* * * * *", "2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z"},
		{"* 2 * * *", "2026-06-01T02:00:00Z", "2026-06-03T19:00:00Z", "2026-06-03T02:59:00Z"},
		{"0 0 * * 1", "2026-06-01T00:00:00Z", "2026-06-07T23:59:59Z", "2026-06-01T00:00:00Z"},
		{"@every 7s", "2026-06-01T00:00:00Z", "2026-06-01T00:01:00Z", "2026-06-01T00:00:56Z"},
	} {
		p, err := parse(c.schedule, "UTC")
		require.NoError(t, err)
		require.Equal(t, c.want, p.last(instant(t, c.was), instant(t, c.now)).Format(time.RFC3339), c.schedule)
	}
}
