package config

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
)

// Setting is one variable as it took effect, for showing: secrets, and passwords in URLs, are hidden in it.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // default, environment, or file
	Set    bool   `json:"set"`    // the environment gives a value that is not empty
}

// Redacted lists every variable as it took effect. It is also what Format, LogValue and MarshalJSON show.
func (c Config) Redacted() []Setting { return slices.Clone(c.settings) }

// String shows the settings that are not defaults, one a line.
func (c Config) String() string {
	var b strings.Builder
	for _, s := range c.settings {
		if s.Source != "default" {
			b.WriteString(s.Name + "=" + s.Value + " (" + s.Source + ")\n")
		}
	}
	return b.String()
}

// Format implements fmt.Formatter: every verb shows what String does.
func (c Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue implements slog.LogValuer with the settings that are not defaults.
func (c Config) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, s := range c.settings {
		if s.Source != "default" {
			attrs = append(attrs, slog.String(s.Name, s.Value))
		}
	}
	return slog.GroupValue(attrs...)
}

// MarshalJSON implements json.Marshaler with every setting.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.settings) }

// show is the field's raw value as it may be shown.
func (f field) show(raw string) string {
	switch {
	case raw == "":
		return ""
	case f.tag.Get("kind") == "url":
		return withoutPassword(raw)
	case f.secret():
		return hidden
	}
	return raw
}

// withoutPassword hides the credentials in a URL, and the whole of what cannot be read but may hold some.
func withoutPassword(raw string) string {
	if !strings.Contains(raw, "@") && !strings.Contains(raw, "password") {
		return raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Query().Has("password") {
		return hidden
	}
	if _, has := u.User.Password(); !has && strings.HasPrefix(u.Scheme, "http") && u.User != nil {
		u.User = url.User("xxxxx")
	}
	return u.Redacted()
}
