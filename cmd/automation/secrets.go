package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"automation/config"
)

// The secrets in the data folder.
const (
	secretKeyFile = "secret-key" // seals secrets in rows
	apiKeyFile    = "api-key"    // logs the local user in
)

// keyFile reads a secret that an earlier start left in the data folder, or makes it: 32 random bytes in base64, 0600. The
// file is linked into place, so that two processes that start at once end with the same key.
func keyFile(dir, name string) (key string, made bool, err error) {
	path := filepath.Join(dir, name)
	if key, err := readKey(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails: crypto/rand's promise
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return "", false, fmt.Errorf("make %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(raw) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", false, fmt.Errorf("make %s: %w", path, err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", false, fmt.Errorf("make %s: %w", path, err)
	}
	key, err = readKey(path)
	return key, err == nil, err
}

func readKey(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	key := strings.TrimSpace(string(text))
	if key == "" {
		return "", fmt.Errorf("%s is empty: remove it, and a new key is made", path)
	}
	return key, nil
}

// sealingKeys are the keys that seal secrets in rows; on SQLite one is made in the data folder where none is configured.
func (a *App) sealingKeys() ([][]byte, error) {
	keys, err := a.config.SealingKeys()
	if err != nil || len(keys) > 0 {
		return keys, err
	}
	text, _, err := keyFile(a.config.Storage.DataDir, secretKeyFile)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(a.config.Storage.DataDir, text)
	return [][]byte{key}, err
}

// parseKey reads the text of the secret-key file in dir.
func parseKey(dir, text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("%s: want 32 bytes in base64", filepath.Join(dir, secretKeyFile))
	}
	return key, nil
}

// login finds the key of the local user; where nobody could log in, it makes one.
func (a *App) login(context.Context) error {
	a.localKey = a.config.Auth.LocalAPIKey
	if !a.config.NeedsLocalKey() {
		return nil
	}
	key, made, err := keyFile(a.config.Storage.DataDir, apiKeyFile)
	if err != nil {
		return err
	}
	a.localKey = config.Secret(key)
	hide(a.log, key)
	if made {
		a.log.Info("made a login key", "file", filepath.Join(a.config.Storage.DataDir, apiKeyFile))
	}
	return nil
}
