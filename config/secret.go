package config

import (
	"fmt"
	"io"
)

// hidden stands for a secret wherever settings are shown.
const hidden = "[hidden]"

// Secret is a value that is never shown: however it is printed, logged or marshalled, it reads as hidden, or empty.
type Secret string

// Reveal returns the value itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format implements fmt.Formatter: every verb hides the value, %d and %#v too.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText implements encoding.TextMarshaler, which encoding/json and log/slog use.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Keys are the 32-byte keys that seal secrets at rest. They print like a Secret.
type Keys [][]byte

// String implements fmt.Stringer.
func (k Keys) String() string {
	if len(k) == 0 {
		return ""
	}
	return hidden
}

// Format implements fmt.Formatter.
func (k Keys) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// MarshalText implements encoding.TextMarshaler.
func (k Keys) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
