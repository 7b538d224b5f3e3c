package models

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ErrRunToken means that a run token is malformed, not ours or expired.
var ErrRunToken = errors.New("run token is not valid")

// RunTokenPrefix starts every run token.
const RunTokenPrefix = "run1."

// sealedPrefix starts every sealed value and names its format.
const sealedPrefix = "gcm1:"

// key is one secret key in its two uses.
type key struct {
	aead cipher.AEAD
	mac  []byte
}

func newKeys(secrets [][]byte) ([]key, error) {
	keys := make([]key, 0, len(secrets))
	for _, secret := range secrets {
		if len(secret) != 32 {
			return nil, fmt.Errorf("a secret key has %d bytes, not 32", len(secret))
		}
		seal, err := hkdf.Key(sha256.New, secret, nil, "automation seal", 32)
		if err != nil {
			return nil, err
		}
		mac, err := hkdf.Key(sha256.New, secret, nil, "automation run token", 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(seal)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key{aead: aead, mac: mac})
	}
	return keys, nil
}

// seal encrypts a secret with the first key. The empty string stays empty.
func (s *Store) seal(plain string) (string, error) {
	if plain == "" {
		return "", nil
	}
	if len(s.keys) == 0 {
		return "", fmt.Errorf("seal a secret: %w: no key is configured", ErrSealed)
	}
	sealed := s.keys[0].aead.Seal(nil, nil, []byte(plain), nil) //nolint:gosec // G407: the AEAD makes a random nonce itself
	return sealedPrefix + base64.RawStdEncoding.EncodeToString(sealed), nil
}

// unseal decrypts what seal made, with whichever key opens it; ErrSealed when none does.
func (s *Store) unseal(sealed string) (string, error) {
	if sealed == "" {
		return "", nil
	}
	text, ok := strings.CutPrefix(sealed, sealedPrefix)
	if !ok {
		return "", ErrSealed
	}
	raw, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return "", ErrSealed
	}
	for _, k := range s.keys {
		if plain, err := k.aead.Open(nil, nil, raw, nil); err == nil {
			return string(plain), nil
		}
	}
	return "", ErrSealed
}

// openKey decrypts a session key for a reader: "" when it cannot be opened, for then it is read anew from the provider, and
// never blocks a suspend or delete (design section 4, "Secrets").
func (s *Store) openKey(sealed string) string {
	plain, err := s.unseal(sealed)
	if err != nil {
		return ""
	}
	return plain
}

// MintRunToken makes the credential with which a run calls back until expires: it names one run and opens complete, phase
// and KV of that run only (design section 5). It is an HMAC, so nothing is stored. A Store without a key, which serving rules
// out at start, mints "", which opens nothing.
func (s *Store) MintRunToken(runID uuid.UUID, expires time.Time) string {
	if len(s.keys) == 0 {
		return ""
	}
	claim := binary.BigEndian.AppendUint64(runID[:], uint64(expires.Unix()))
	return RunTokenPrefix + base64.RawURLEncoding.EncodeToString(append(claim, sign(s.keys[0].mac, claim)...))
}

// VerifyRunToken returns the run that a token was minted for; ErrRunToken when it is malformed, not ours or expired.
func (s *Store) VerifyRunToken(token string) (uuid.UUID, error) {
	text, ok := strings.CutPrefix(token, RunTokenPrefix)
	if !ok {
		return uuid.Nil, ErrRunToken
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) != 16+8+sha256.Size {
		return uuid.Nil, ErrRunToken
	}
	claim, tag := raw[:24], raw[24:]
	expires := time.Unix(int64(binary.BigEndian.Uint64(claim[16:])), 0)
	for _, k := range s.keys {
		if hmac.Equal(tag, sign(k.mac, claim)) && s.Now().Before(expires) {
			return uuid.UUID(claim[:16]), nil
		}
	}
	return uuid.Nil, ErrRunToken
}

func sign(key, claim []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(claim)
	return mac.Sum(nil)
}

// NewKey makes a random 32-byte key.
func NewKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails: crypto/rand ends the process instead
	return key
}
