package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// The rules of single values, which the tables of bodies.go are made of.

// text is a string of least to most characters; most 0 means no limit. NUL is refused, for no database column takes it.
func text(least, most int) rule {
	shape := schema{"type": "string"}
	if least > 0 {
		shape["minLength"] = least
	}
	if most > 0 {
		shape["maxLength"] = most
	}
	return rule{func(c *check, at loc, v any) any {
		s, isString := v.(string)
		if !isString {
			c.add("string_type", at, "Input should be a valid string", v, nil)
			return nil
		}
		if strings.ContainsRune(s, 0) {
			c.refuse(at, v, says("must not contain NUL characters"))
			return nil
		}
		n := utf8.RuneCountInString(s)
		if n < least {
			c.add("string_too_short", at, fmt.Sprintf("String should have at least %d %s", least, plural("character", least)), v,
				map[string]any{"min_length": least})
		}
		if most > 0 && n > most {
			c.add("string_too_long", at, fmt.Sprintf("String should have at most %d %s", most, plural("character", most)), v,
				map[string]any{"max_length": most})
		}
		return s
	}, shape}
}

func plural(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// oneOf is a string out of words. kind is literal_error or enum, which the contract tells apart.
func oneOf(kind string, words ...string) rule {
	return rule{func(c *check, at loc, v any) any {
		if s, isString := v.(string); isString && slices.Contains(words, s) {
			return s
		}
		want := "'" + strings.Join(words, "', '") + "'"
		if i := strings.LastIndex(want, ", "); i >= 0 {
			want = want[:i] + " or " + want[i+2:]
		}
		c.add(kind, at, "Input should be "+want, v, map[string]any{"expected": want})
		return nil
	}, schema{"type": "string", "enum": words}}
}

// boolean takes JSON booleans, 0 and 1, and the usual words.
var boolean = rule{checkBoolean, schema{"type": "boolean"}}

func checkBoolean(c *check, at loc, v any) any {
	var word string
	switch t := v.(type) {
	case bool:
		return t
	case json.Number:
		word = t.String()
		if f, err := t.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) <= 1 {
			word = strconv.Itoa(int(f))
		}
	case string:
		word = strings.ToLower(t)
	default:
		c.add("bool_type", at, "Input should be a valid boolean", v, nil)
		return nil
	}
	switch word {
	case "1", "true", "t", "yes", "y", "on":
		return true
	case "0", "false", "f", "no", "n", "off":
		return false
	}
	c.add("bool_parsing", at, "Input should be a valid boolean, unable to interpret input", v, nil)
	return nil
}

// integer takes whole numbers and numeric strings, as int64; what is larger becomes the largest, for the bounds to refuse.
var integer = rule{checkInteger, schema{"type": "integer"}}

func checkInteger(c *check, at loc, v any) any {
	switch t := v.(type) {
	case bool:
		if t {
			return int64(1)
		}
		return int64(0)
	case json.Number:
		if n, ok := whole(t.String()); ok {
			return n
		}
		c.add("int_from_float", at, "Input should be a valid integer, got a number with a fractional part", v, nil)
	case string:
		if n, ok := whole(strings.TrimSpace(t)); ok && !strings.ContainsAny(t, "eE") {
			return n
		}
		c.add("int_parsing", at, "Input should be a valid integer, unable to parse string as an integer", v, nil)
	default:
		c.add("int_type", at, "Input should be a valid integer", v, nil)
	}
	return nil
}

func whole(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return n, true
	}
	if errors.Is(err, strconv.ErrRange) {
		return n, true // the nearest int64
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsNaN(f) || f != math.Trunc(f) {
		return 0, false
	}
	return int64(max(math.MinInt64, min(f, math.MaxInt64/2))), true
}

// between bounds an integer, both ends allowed.
func between(least, most int64) rule {
	return rule{func(c *check, at loc, v any) any {
		n, isInt := checkInteger(c, at, v).(int64)
		switch {
		case !isInt:
			return nil
		case n < least:
			c.add("greater_than_equal", at, fmt.Sprintf("Input should be greater than or equal to %d", least), v, map[string]any{"ge": least})
		case n > most:
			c.add("less_than_equal", at, fmt.Sprintf("Input should be less than or equal to %d", most), v, map[string]any{"le": most})
		}
		return n
	}, schema{"type": "integer", "minimum": least, "maximum": most}}
}

// number takes finite numbers and numeric strings, as float64.
var number = rule{checkNumber, schema{"type": "number"}}

func checkNumber(c *check, at loc, v any) any {
	var s string
	switch t := v.(type) {
	case json.Number:
		s = t.String()
	case string:
		s = strings.TrimSpace(t)
	case bool:
		s = map[bool]string{true: "1", false: "0"}[t]
	default:
		c.add("float_type", at, "Input should be a valid number", v, nil)
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		c.add("finite_number", at, "Input should be a finite number", v, nil)
	case err != nil:
		c.add("float_parsing", at, "Input should be a valid number, unable to parse string as a number", v, nil)
	default:
		return f
	}
	return nil
}

// list checks each entry and returns []T.
func list[T any](r rule) rule {
	return rule{func(c *check, at loc, v any) any {
		in, isList := v.([]any)
		if !isList {
			c.add("list_type", at, "Input should be a valid list", v, nil)
			return nil
		}
		out := make([]T, 0, len(in))
		for i, entry := range in {
			t, _ := r.check(c, at.at(i), entry).(T)
			out = append(out, t)
		}
		return out
	}, schema{"type": "array", "items": r.schema}}
}

// anyObject is an object of whatever content; NUL characters become U+FFFD, for no database column takes them.
var anyObject = rule{checkAnyObject, schema{"type": "object"}}

func checkAnyObject(c *check, at loc, v any) any {
	in, isObject := v.(map[string]any)
	if !isObject {
		c.add("dict_type", at, "Input should be a valid dictionary", v, nil)
		return nil
	}
	return withoutNUL(in)
}

func withoutNUL(v any) any {
	switch t := v.(type) {
	case string:
		return strings.ReplaceAll(t, "\x00", "\uFFFD")
	case []any:
		for i := range t {
			t[i] = withoutNUL(t[i])
		}
	case map[string]any:
		out := make(map[string]any, len(t))
		for k, entry := range t {
			out[strings.ReplaceAll(k, "\x00", "\uFFFD")] = withoutNUL(entry)
		}
		return out
	}
	return v
}

// identifier is a UUID.
var identifier = rule{checkIdentifier, schema{"type": "string", "format": "uuid"}}

func checkIdentifier(c *check, at loc, v any) any {
	s, isString := v.(string)
	if !isString {
		c.add("uuid_type", at, "UUID input should be a string, bytes or UUID object", v, nil)
		return nil
	}
	id, err := uuid.Parse(s)
	if err != nil {
		why := whyNoUUID(s)
		c.add("uuid_parsing", at, "Input should be a valid UUID, "+why, v, map[string]any{"error": why})
		return nil
	}
	return id
}

// whyNoUUID says it in the words of the contract.
func whyNoUUID(s string) string {
	for i, r := range s {
		if r != '-' && !strings.ContainsRune("0123456789abcdefABCDEF", r) {
			return fmt.Sprintf("invalid character: found `%c` at %d", r, i)
		}
	}
	return fmt.Sprintf("invalid length: found %d characters", len(s))
}
