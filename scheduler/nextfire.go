package scheduler

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // schedules must not depend on the machine's zone files

	"github.com/robfig/cron/v3"
)

// ScheduleError says what is wrong with a trigger. Message is the contract's text (section 3.3), Reason says why in words a
// person can act on.
type ScheduleError struct {
	Field   string // schedule or timezone
	Message string
	Reason  string
}

// Error returns the message, with the reason when there is one.
func (e *ScheduleError) Error() string {
	if e.Reason == "" {
		return e.Message
	}
	return e.Message + " (" + e.Reason + ")"
}

// reference is where Validate looks for a fire time; a schedule without a year either fires after it or never.
var reference = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Validate reports as a *ScheduleError why a trigger cannot be saved: an expression that does not parse, a form that has no
// meaning here, a date that never comes (BR-10), an unknown time zone. timezone "" means UTC.
func Validate(schedule, timezone string) error {
	p, err := parse(schedule, timezone)
	if err != nil {
		return err
	}
	if p.next(reference).IsZero() {
		return &ScheduleError{
			Field:   "schedule",
			Message: "Cron expression cannot produce any future fire times: " + schedule,
			Reason:  "the date never occurs",
		}
	}
	return nil
}

// NextFire returns the first instant after after at which schedule fires in timezone, in UTC, and false when it never does:
// an impossible date, or a trigger that Validate refuses.
//
// Where clocks change (design section 9, BR-08): a schedule that names its hours fires once in a repeated hour, the first
// time round, and for times inside a gap once, at the first instant after it. One that fires in every hour, and @every,
// follow elapsed time.
func NextFire(schedule, timezone string, after time.Time) (time.Time, bool) {
	p, err := parse(schedule, timezone)
	if err != nil {
		return time.Time{}, false
	}
	at := p.next(after)
	return at, !at.IsZero()
}

// plan is a parsed schedule: either every or spec is set.
type plan struct {
	spec  *cron.SpecSchedule
	every time.Duration
	loc   *time.Location
}

// fixed reports whether the schedule names its hours of the day; else it fires in each of the 24.
func (p *plan) fixed() bool { return bits.OnesCount64(p.spec.Hour&(1<<24-1)) < 24 }

// next returns the first fire after after, or the zero time. A time zone is a row of spans with a constant offset; inside one
// the wall clock runs like UTC, so the search runs on wall clocks, span by span.
func (p *plan) next(after time.Time) time.Time {
	if p.spec == nil {
		return after.UTC().Truncate(time.Second).Add(p.every)
	}
	t := after.In(p.loc)
	wall := wallClock(t)
	if start, _ := t.ZoneBounds(); p.fixed() && !start.IsZero() {
		// In the second pass of a repeated hour everything up to the old clock's reading has had its turn.
		wall = later(wall, readingBefore(start).Add(-time.Second))
	}
	for {
		n := p.nextReading(wall)
		if n.IsZero() {
			return time.Time{}
		}
		_, offset := t.Zone()
		at := n.Add(-time.Duration(offset) * time.Second)
		_, end := t.ZoneBounds()
		if end.IsZero() || at.Before(end) {
			return at
		}
		t = end
		wall = wallClock(end).Add(-time.Second)
		if p.fixed() {
			if n.Before(wallClock(end)) {
				return end.UTC() // n lies in the gap
			}
			wall = later(wall, readingBefore(end).Add(-time.Second))
		}
	}
}

// last returns the latest fire at or before now, given that was is one and not after now.
func (p *plan) last(was, now time.Time) time.Time {
	if p.spec == nil {
		return now.Add(-(now.Sub(was) % p.every))
	}
	// Between lo, a fire, and hi, after which none comes before now, half the distance goes each round.
	lo, hi := was, now
	for hi.Sub(lo) > time.Second {
		middle := lo.Add(hi.Sub(lo) / 2)
		if n := p.next(middle); n.IsZero() || n.After(now) {
			hi = middle
		} else {
			lo = n
		}
	}
	if n := p.next(lo); !n.IsZero() && !n.After(now) {
		return n
	}
	return lo
}

// nextReading returns the next wall clock reading, written as UTC, that spec matches. The library gives up after five years,
// which is too soon for 29 February around 2100.
func (p *plan) nextReading(wall time.Time) time.Time {
	if n := p.spec.Next(wall); !n.IsZero() {
		return n
	}
	return p.spec.Next(wall.AddDate(5, 0, 0))
}

// wallClock returns what the clock on the wall shows at t, written as UTC.
func wallClock(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// readingBefore returns what the clock on the wall would show at the change t had it not been changed.
func readingBefore(t time.Time) time.Time {
	return wallClock(t.Add(-time.Second)).Add(time.Second)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// parse is the guarded door to the library, which panics on "TZ=" and takes some expressions to mean what nobody wrote.
func parse(schedule, timezone string) (*plan, error) {
	if timezone == "" {
		timezone = "UTC"
	}
	loc, err := time.LoadLocation(timezone)
	if err != nil || timezone == "Local" {
		return nil, &ScheduleError{Field: "timezone", Message: "Invalid timezone: " + timezone}
	}
	p, err := parseExpression(schedule)
	if err != nil {
		return nil, &ScheduleError{Field: "schedule", Message: "Invalid cron expression: " + schedule, Reason: err.Error()}
	}
	p.loc = loc
	return p, nil
}

const maxExpressionBytes = 256

func parseExpression(expression string) (*plan, error) {
	expression = strings.TrimSpace(expression)
	switch {
	case expression == "":
		return nil, errors.New("it is empty")
	case len(expression) > maxExpressionBytes:
		return nil, fmt.Errorf("it is longer than %d bytes", maxExpressionBytes)
	case strings.Contains(expression, "TZ="):
		return nil, errors.New("the time zone belongs into the trigger's timezone")
	case strings.HasPrefix(expression, "@every"):
		return parseEvery(expression)
	case strings.HasPrefix(expression, "@"):
		spec, err := parseSpec(cron.ParseStandard, expression)
		return &plan{spec: spec}, err
	}
	places, err := checkFields(strings.Fields(expression))
	if err != nil {
		return nil, err
	}
	seconds := slices.Concat(places[len(fields)-1:], places[:len(fields)-1]) // the library wants them first, the contract last
	spec, err := parseSpec(cron.NewParser(withSeconds).Parse, strings.Join(seconds, " "))
	if err != nil {
		return nil, err
	}
	spec.Second &= -spec.Second // the first one: a schedule fires at most once a minute
	return &plan{spec: spec}, nil
}

const withSeconds = cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow

// parseSpec turns a panic of the library into an error.
func parseSpec(parse func(string) (cron.Schedule, error), expression string) (spec *cron.SpecSchedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			spec, err = nil, errors.New("it cannot be parsed")
		}
	}()
	s, err := parse(expression)
	if err != nil {
		return nil, err
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok {
		return nil, errors.New("it is of no known form")
	}
	return spec, nil
}

func parseEvery(expression string) (*plan, error) {
	every, err := time.ParseDuration(strings.TrimSpace(strings.TrimPrefix(expression, "@every")))
	switch {
	case err != nil:
		return nil, errors.New("@every wants a duration such as 90s or 1h30m")
	case every < time.Second:
		return nil, errors.New("@every must be at least one second")
	case every%time.Second != 0:
		return nil, errors.New("@every must be whole seconds")
	}
	return &plan{every: every}, nil
}

// field describes one place of an expression.
type field struct {
	name  string
	width int // how many values it has
}

var fields = [6]field{{"minute", 60}, {"hour", 24}, {"day of month", 31}, {"month", 12}, {"day of week", 7}, {"second", 60}}

// checkFields refuses what other dialects of cron allow and the library would reject with an obscure text or misread, and
// rewrites weekday 7 (Sunday in most dialects), which it does not know. It returns six fields, seconds last.
func checkFields(in []string) ([]string, error) {
	switch {
	case len(in) == 7 && in[6] == "*":
		in = in[:6]
	case len(in) == 7:
		return nil, errors.New("years cannot be given: write five or six fields")
	case len(in) == 5:
		in = append(in, "0")
	}
	if len(in) != len(fields) {
		return nil, fmt.Errorf("it has %d fields, five are needed", len(in))
	}
	out := make([]string, len(in))
	for i, text := range in {
		parts := strings.Split(text, ",")
		for j, part := range parts {
			if err := checkPart(part, fields[i]); err != nil {
				return nil, err
			}
			if i == 4 {
				parts[j] = sundayIsZero(part)
			}
		}
		out[i] = strings.Join(parts, ",")
	}
	return out, nil
}

func checkPart(part string, f field) error {
	base, step, stepped := strings.Cut(part, "/")
	upper := strings.ToUpper(base)
	last := strings.HasSuffix(upper, "L") && upper != "JUL"
	switch {
	case part == "":
		return fmt.Errorf("the %s has an empty list entry", f.name)
	case strings.Contains(part, "#"):
		return errors.New("the n-th weekday of a month (#) cannot be expressed")
	case last || strings.HasPrefix(upper, "L"):
		return errors.New("the last day (L) cannot be expressed")
	case f.width == 31 && strings.HasSuffix(upper, "W"):
		return errors.New("the nearest weekday (W) cannot be expressed")
	}
	if !stepped {
		return nil
	}
	if n, err := strconv.Atoi(step); err == nil && n > f.width {
		return fmt.Errorf("step %d is wider than the %s", n, f.name)
	}
	return nil
}

// sundayIsZero writes Sunday as 0 where a weekday entry ends with it: 7, 5-7, mon-sun, with or without a step.
func sundayIsZero(part string) string {
	base, stepText, stepped := strings.Cut(part, "/")
	first, last, isRange := strings.Cut(base, "-")
	if first == "7" && !isRange {
		return "0"
	}
	if !isRange || (last != "7" && !strings.EqualFold(last, "sun")) {
		return part
	}
	from, ok := weekday(first)
	if !ok {
		return part
	}
	step := 1
	if stepped {
		n, err := strconv.Atoi(stepText)
		if err != nil || n < 1 {
			return part
		}
		step = n
	}
	var days []string
	for d := from; d <= 7; d += step {
		days = append(days, strconv.Itoa(d%7))
	}
	return strings.Join(days, ",")
}

func weekday(s string) (int, bool) {
	for i, name := range [...]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} {
		if strings.EqualFold(s, name) {
			return i, true
		}
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n <= 7
}
