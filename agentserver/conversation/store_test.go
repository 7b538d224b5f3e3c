package conversation

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const id = "aaaaaaaa000040008000000000000001"

// made is a store with one conversation of this state.
func made(t *testing.T, state string) (*Store, string) {
	t.Helper()
	s := Open(filepath.Join(t.TempDir(), "histories"))
	require.NoError(t, s.Create(id, []byte(`{"title":"a"}`), []byte(state)))
	return s, filepath.Join(s.Path(), id)
}

func TestS0_027_ActivityComesFromTheTimeOfTheStateFile(t *testing.T) {
	s, dir := made(t, `{"execution_status":"paused"}`)
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "base_state.json"), at, at))
	c, err := s.Get(id, at)
	require.NoError(t, err)
	require.Equal(t, []any{at, "paused", "a", false, false}, []any{c.LastActive, c.Status, *c.Title, c.Working(), c.Leased})
	require.NoError(t, os.Remove(filepath.Join(dir, "base_state.json")))
	c, err = s.Get(id, at)
	require.NoError(t, err)
	require.True(t, c.LastActive.IsZero())
}

func TestALeaseSaysWhetherAServerHasTheConversationOpen(t *testing.T) {
	now := time.Now()
	old := now.Add(-2 * time.Minute)
	for text, leased := range map[string]bool{
		`{"expires_at":` + seconds(now.Add(time.Second)) + `}`:                    true,
		`{"expires_at":` + seconds(now.Add(-time.Second)) + `}`:                   false,
		`{"expires_at":"` + now.Add(time.Second).Format(time.RFC3339Nano) + `"}`:  true,
		`{"expires_at":"` + now.Add(-time.Second).Format(time.RFC3339Nano) + `"}`: false,
		`not JSON`: true,
		`{}`:       true,
	} {
		t.Run(text, func(t *testing.T) {
			s, dir := made(t, `{"execution_status":"idle"}`)
			file := filepath.Join(dir, "owner_lease.json")
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			c, err := s.Get(id, now)
			require.NoError(t, err)
			require.Equal(t, leased, c.Leased)
			require.NoError(t, os.Chtimes(file, old, old))
			c, err = s.Get(id, now)
			require.NoError(t, err)
			require.Equal(t, leased && strings.Contains(text, "expires_at"), c.Leased, "what cannot be read counts for a minute")
		})
	}
	t.Run("a status of running that its lease has outlived was left by a crash", func(t *testing.T) {
		s, dir := made(t, `{"execution_status":"running"}`)
		c, err := s.Get(id, now)
		require.NoError(t, err)
		require.True(t, c.Working())
		require.NoError(t, os.WriteFile(filepath.Join(dir, "owner_lease.json"), []byte(`{"expires_at":`+seconds(now)+`}`), 0o600))
		c, err = s.Get(id, now.Add(59*time.Minute))
		require.NoError(t, err)
		require.True(t, c.Working())
		c, err = s.Get(id, now.Add(61*time.Minute))
		require.NoError(t, err)
		require.False(t, c.Working())
	})
}

func seconds(at time.Time) string {
	return strconv.FormatFloat(float64(at.UnixMicro())/1e6, 'f', 6, 64)
}

func TestAHistoryThatAnAgentPreparedIsNotFollowedAndNotWaitedFor(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, []byte(`{"execution_status":"running"}`), 0o600))
	for name, prepare := range map[string]func(file string) error{
		"a link": func(file string) error { return os.Symlink(outside, file) },
		"a pipe": func(file string) error { return syscall.Mkfifo(file, 0o600) },
		"a huge file": func(file string) error {
			return os.WriteFile(file, []byte(strings.Repeat(" ", fileLimit+1)), 0o600)
		},
		"no JSON": func(file string) error { return os.WriteFile(file, []byte("x"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := made(t, `{}`)
			file := filepath.Join(dir, "base_state.json")
			require.NoError(t, os.Remove(file))
			require.NoError(t, prepare(file))
			c, err := s.Get(id, time.Now())
			require.Error(t, err)
			require.False(t, c.Working())
		})
	}
	t.Run("a conversation that is a link", func(t *testing.T) {
		s, dir := made(t, `{}`)
		require.NoError(t, os.Rename(dir, dir+"-aside"))
		require.NoError(t, os.Symlink(dir+"-aside", dir))
		_, err := s.Get(id, time.Now())
		require.ErrorIs(t, err, fs.ErrNotExist)
		ids, err := s.IDs()
		require.NoError(t, err)
		require.Empty(t, ids)
		require.NoError(t, s.Remove(id))
		require.FileExists(t, filepath.Join(dir+"-aside", "meta.json"))
	})
}

func TestS0_067_ARetentionIsStoredBesideTheHistory(t *testing.T) {
	s, dir := made(t, `{}`)
	r, err := s.Retention(id)
	require.NoError(t, err)
	require.Equal(t, Retention{Policy: Default}, r)
	days := 3
	require.NoError(t, s.SetRetention(id, Retention{Policy: Days, Days: &days}))
	r, err = s.Retention(id)
	require.NoError(t, err)
	require.Equal(t, 3, *r.Days)
	after, ok := r.After(1)
	require.Equal(t, []any{72 * time.Hour, true}, []any{after, ok})
	_, ok = Retention{Policy: Default}.After(0)
	require.False(t, ok)
	require.NoError(t, os.WriteFile(filepath.Join(dir, retentionFile), []byte(`{"policy":"never"}`), 0o600))
	_, err = s.Retention(id)
	require.ErrorIs(t, err, ErrRetention)
	require.ErrorIs(t, s.SetRetention(strings.Repeat("b", 32), Retention{Policy: OnStop}), fs.ErrNotExist)
	require.True(t, IsID(NewID()))
	require.ErrorIs(t, s.Create(id, nil, nil), fs.ErrExist)
}
