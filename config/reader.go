package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// reader fills a Config from an environment and collects what is wrong with it.
type reader struct {
	env      map[string]string
	home     string
	problems []Problem
	settings []Setting
}

// field is one field of a section with the tags that describe its variable.
type field struct {
	names []string
	tag   reflect.StructTag
	value reflect.Value
}

// fields lists the variables of c in order of declaration.
func fields(c *Config) []field {
	var all []field
	for _, section := range reflect.ValueOf(c).Elem().Fields() {
		if section.Kind() != reflect.Struct {
			continue
		}
		for sf, value := range section.Fields() {
			if names := sf.Tag.Get("env"); names != "" {
				all = append(all, field{strings.Split(names, ","), sf.Tag, value})
			}
		}
	}
	return all
}

func (f field) secret() bool {
	t := f.value.Type()
	return t == reflect.TypeFor[Secret]() || t == reflect.TypeFor[Keys]()
}

// read fills every field.
func (r *reader) read(c *Config) {
	for _, f := range fields(c) {
		name, raw, source := r.lookup(f)
		if err := r.set(f, raw); err != nil {
			p := Problem{Name: name, Value: shown(raw), Set: true, Want: err.Error()}
			if f.secret() && raw != "" {
				p.Value = hidden
			} else if f.tag.Get("kind") == "url" {
				p.Value = withoutPassword(p.Value)
			}
			r.problems = append(r.problems, p)
		}
		r.settings = append(r.settings, Setting{
			Name: f.names[0], Value: f.show(raw), Source: source, Set: source != "default" && raw != "",
		})
	}
}

// lookup finds the value of a field: the first of its names that is set, or the file that NAME_FILE of a secret names, or
// the default. A text that is set but empty counts as not set, but for those where empty has a meaning (tag empty:"keep");
// an empty number is an error, but for those where it means 0 (tag empty:"zero").
func (r *reader) lookup(f field) (name, raw, source string) {
	for _, name := range f.names {
		value, ok := r.env[name]
		if f.secret() {
			if path := r.env[name+"_FILE"]; path != "" {
				return name, r.readFile(name, path, value), "file"
			}
		}
		if ok && value == "" && f.tag.Get("empty") == "zero" {
			return name, "0", "environment"
		}
		_, text := reflect.TypeAssert[string](f.value)
		if ok && (value != "" || !text || f.tag.Get("empty") == "keep") {
			return name, value, "environment"
		}
	}
	return f.names[0], f.tag.Get("default"), "default"
}

func (r *reader) readFile(name, path, value string) string {
	if value != "" {
		r.problem(name+"_FILE", path, "want only one of "+name+" and "+name+"_FILE")
		return ""
	}
	content, err := os.ReadFile(r.expand(path))
	if err != nil {
		cause := err
		if pe := (*os.PathError)(nil); errors.As(err, &pe) {
			cause = pe.Err
		}
		r.problem(name+"_FILE", path, "want a file that can be read: "+cause.Error())
		return ""
	}
	secret := strings.TrimRight(string(content), "\r\n")
	if secret == "" {
		r.problem(name+"_FILE", path, "want a file that is not empty")
	}
	return secret
}

func (r *reader) problem(name, value, want string) {
	r.problems = append(r.problems, Problem{Name: name, Value: shown(value), Set: true, Want: want})
}

// set parses raw into the field. Its error says what is accepted.
func (r *reader) set(f field, raw string) error {
	var v any
	var err error
	switch f.value.Interface().(type) {
	case time.Duration:
		v, err = parseDuration(f.tag, raw)
	case int:
		var n int64
		n, err = parseInt(f.tag, raw, math.MaxInt32, "an integer")
		v = int(n)
	case int64:
		v, err = parseInt(f.tag, raw, math.MaxInt64, "an integer")
	case bool:
		v, err = parseBool(raw)
	case []string:
		v, err = parseOrigins(raw)
	case map[string]int:
		v, err = parseSlots(raw)
	case map[string]Price:
		v, err = parsePrices(raw)
	case uuid.UUID:
		v, err = parseUUID(raw)
	case Keys:
		v, err = parseKeys(raw)
	case Secret:
		v = Secret(raw)
	case string:
		v, err = r.parseText(f.tag, raw)
	default:
		panic("config: no parser for " + f.names[0])
	}
	if err == nil {
		f.value.Set(reflect.ValueOf(v))
	}
	return err
}

func (r *reader) parseText(tag reflect.StructTag, raw string) (string, error) {
	if words := tag.Get("oneof"); words != "" {
		return parseWord(words, raw)
	}
	switch tag.Get("kind") {
	case "url":
		return parseURL(raw)
	case "addr":
		return parseAddr(raw)
	case "path":
		return r.parsePath(raw)
	}
	return raw, nil
}

// units are what a number in the environment counts.
var units = map[string]struct {
	name string
	size time.Duration
}{
	"ms": {"milliseconds", time.Millisecond},
	"s":  {"seconds", time.Second},
	"h":  {"hours", time.Hour},
	"d":  {"days", 24 * time.Hour},
}

func parseDuration(tag reflect.StructTag, raw string) (time.Duration, error) {
	unit := units[tag.Get("unit")]
	most := math.MaxInt64 / int64(unit.size)
	if tag.Get("fraction") != "true" {
		n, err := parseInt(tag, raw, most, "an integer number of "+unit.name)
		return time.Duration(n) * unit.size, err
	}
	least, _ := strconv.ParseFloat(tag.Get("min"), 64)
	n, err := strconv.ParseFloat(strings.TrimSpace(raw), 64)
	if err != nil || !(n >= least) || n >= float64(most) {
		return 0, fmt.Errorf("want a number of %s from %v to %d, e.g. %s", unit.name, least, most, example(tag))
	}
	return time.Duration(n * float64(unit.size)), nil
}

// parseInt reads a decimal integer within the field's limits, at most most.
func parseInt(tag reflect.StructTag, raw string, most int64, what string) (int64, error) {
	least, lower := int64(math.MinInt32), ""
	if tag.Get("min") != "any" {
		least, _ = strconv.ParseInt(tag.Get("min"), 10, 64)
		lower = fmt.Sprintf(" >= %d", least)
	}
	if limit, err := strconv.ParseInt(tag.Get("max"), 10, 64); err == nil {
		most = min(most, limit)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(raw), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && !strings.Contains(raw, "-"), err == nil && n > most:
		return 0, fmt.Errorf("want %s%s and <= %d, e.g. %s", what, lower, most, example(tag))
	case err != nil, n < least:
		return 0, fmt.Errorf("want %s%s, e.g. %s", what, lower, example(tag))
	}
	return n, nil
}

func example(tag reflect.StructTag) string {
	if d := tag.Get("default"); d != "" && d != "0" {
		return d
	}
	return "600"
}

func parseBool(raw string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(raw)) {
	case "1", "true", "yes", "on", "t", "y":
		return true, nil
	case "0", "false", "no", "off", "f", "n":
		return false, nil
	}
	return false, errors.New("want true or false (or 1, yes, on; 0, no, off)")
}

// parseWord accepts a closed set of words in any case.
func parseWord(words, raw string) (string, error) {
	word := strings.ToLower(strings.TrimSpace(raw))
	if word == "" {
		return "", nil
	}
	all := strings.Split(words, "|")
	for _, w := range all {
		if w == word {
			return w, nil
		}
	}
	if len(all) == 1 {
		return "", fmt.Errorf("want %s", all[0])
	}
	return "", fmt.Errorf("want one of %s", strings.Join(all, ", "))
}

func parseURL(raw string) (string, error) {
	if raw == "" {
		return "", nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !validPort(u.Port()) ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("want an http or https URL without credentials, query or fragment, e.g. https://automation.example.com")
	}
	return strings.TrimRight(raw, "/"), nil
}

func validPort(port string) bool {
	if port == "" {
		return true
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// parseAddr accepts host:port; port 0 means any free one, no host every interface.
func parseAddr(raw string) (string, error) {
	if raw == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(raw)
	if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || strings.ContainsAny(host, "/ ") {
		return "", errors.New("want host:port, e.g. 127.0.0.1:8000")
	}
	return raw, nil
}

func (r *reader) parsePath(raw string) (string, error) {
	if raw == "" {
		return "", nil
	}
	if strings.ContainsRune(raw, 0) {
		return "", errors.New("want a path without a NUL byte")
	}
	if strings.HasPrefix(raw, "~") && r.home == "" {
		return "", errors.New("want an absolute path where HOME is not set")
	}
	path, err := filepath.Abs(r.expand(raw))
	if err != nil {
		return "", fmt.Errorf("want an absolute path: %w", err)
	}
	return path, nil
}

// expand replaces ~/ by the home directory.
func (r *reader) expand(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		return filepath.Join(r.home, rest)
	}
	return path
}

// parseOrigins accepts URLs separated by commas, and * for any.
func parseOrigins(raw string) ([]string, error) {
	list := splitList(raw)
	for i, item := range list {
		if item == "*" {
			continue
		}
		origin, err := parseURL(item)
		if err != nil {
			return nil, errors.New("want http or https URLs separated by commas, or *")
		}
		list[i] = origin
	}
	return list, nil
}

func splitList(raw string) []string {
	var list []string
	for item := range strings.SplitSeq(raw, ",") {
		if item = strings.TrimSpace(item); item != "" {
			list = append(list, item)
		}
	}
	return list
}

func parseUUID(raw string) (uuid.UUID, error) {
	if raw == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(raw)
	if err != nil || id == uuid.Nil {
		return uuid.Nil, errors.New("want a UUID, e.g. 019f0f5e-8d5a-7c3b-9a51-2f6c4d0b7e11")
	}
	return id, nil
}

func parseKeys(raw string) (Keys, error) {
	var keys Keys
	for _, item := range splitList(raw) {
		key, err := base64.StdEncoding.DecodeString(item)
		if err != nil || len(key) != 32 {
			return nil, errors.New("want 32 bytes in base64, several separated by commas, e.g. from: openssl rand -base64 32")
		}
		keys = append(keys, key)
	}
	return keys, nil
}
