package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Price is what one hour of a box costs at a backend, in the operator's own currency.
type Price struct {
	Awake  float64
	Paused float64
}

// mostSlots is more boxes than anybody has.
const mostSlots = 1_000_000

// parseSlots reads how many boxes may be awake at a time, by backend: openhands=10,e2b=20.
func parseSlots(raw string) (map[string]int, error) {
	return parsePlans(raw, "openhands=10,e2b=20", func(text string) (int, error) {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n < 1 || n > mostSlots {
			return 0, fmt.Errorf("want a number of boxes from 1 to %d", mostSlots)
		}
		return int(n), nil
	})
}

// parsePrices reads what an hour of a box costs, awake and paused, by backend: e2b=0.08/0.002.
func parsePrices(raw string) (map[string]Price, error) {
	return parsePlans(raw, "openhands=0.1/0.004,e2b=0.08", func(text string) (Price, error) {
		awake, paused, _ := strings.Cut(text, "/")
		one, err := parsePrice(awake)
		if err != nil || paused == "" {
			return Price{Awake: one}, err
		}
		other, err := parsePrice(paused)
		return Price{Awake: one, Paused: other}, err
	})
}

func parsePrice(text string) (float64, error) {
	const most = 1e6
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(n >= 0 && n <= most) {
		return 0, errors.New("want prices of an hour awake and, after a slash, of an hour paused, each a number >= 0")
	}
	return n, nil
}

// parsePlans reads backend=value, several separated by commas.
func parsePlans[T any](raw, example string, parse func(string) (T, error)) (map[string]T, error) {
	plans := map[string]T{}
	for _, item := range splitList(raw) {
		name, text, _ := strings.Cut(item, "=")
		name, err := parseWord(backendWords(), name)
		if _, twice := plans[name]; err != nil || name == "" || twice {
			return nil, fmt.Errorf("want each backend once, with =, of %s, e.g. %s", strings.ReplaceAll(backendWords(), "|", ", "), example)
		}
		value, err := parse(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%w, e.g. %s", err, example)
		}
		plans[name] = value
	}
	return plans, nil
}

// backendWords are the backends that new runs can be given, as in the tag of Sandbox.Backend.
func backendWords() string {
	field, _ := reflect.TypeFor[Sandbox]().FieldByName("Backend")
	return field.Tag.Get("oneof")
}
