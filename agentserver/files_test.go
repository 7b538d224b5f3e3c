package agentserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func (b *box) download(path string) *httptest.ResponseRecorder {
	return b.send("GET", "/api/file/download?path="+url.QueryEscape(path), "")
}

func (b *box) upload(path, content string) *httptest.ResponseRecorder {
	b.t.Helper()
	return b.serve(uploadRequest(b.t, "/api/file/upload?path="+url.QueryEscape(path), content))
}

func TestFilesRootLetsNothingOut(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	var root string
	b := newBox(t, func(c *Config) {
		root = filepath.Join(c.Home, "root")
		require.NoError(t, os.MkdirAll(filepath.Join(root, "in"), 0o700))
		c.FilesRoot = root
	})
	require.NoError(t, os.WriteFile(filepath.Join(root, "in/file"), []byte("in"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "absolute")))
	require.NoError(t, os.Symlink("../../../../../../../../"+outside, filepath.Join(root, "relative")))
	require.NoError(t, os.Symlink(secret, filepath.Join(root, "file")))
	require.NoError(t, os.Symlink("in", filepath.Join(root, "inner")))

	require.Equal(t, "in", b.download(root+"/in/file").Body.String())
	require.Equal(t, "in", b.download(root+"/inner/file").Body.String(), "a link that stays inside is followed")
	for _, path := range []string{
		secret, "/etc/passwd", root + "/../../secret", root + "/absolute/secret", root + "/relative/secret", root + "/file",
		filepath.Dir(root), root + "x",
	} {
		t.Run(path, func(t *testing.T) {
			answer := b.download(path)
			require.Equal(t, 422, answer.Code, answer.Body.String())
			require.NotContains(t, answer.Body.String(), "secret\n")
			if path != root+"/file" { // there the link itself is replaced by the file, which harms nothing outside
				require.Equal(t, 422, b.upload(path+"/new", "x").Code)
				require.Equal(t, 422, b.send("POST", "/api/file/create_directory?path="+url.QueryEscape(path+"/new"), "").Code)
			}
			require.Equal(t, 422, b.send("GET", "/api/file/search_subdirs?path="+url.QueryEscape(path), "").Code)
		})
	}
	require.Equal(t, 200, b.upload(root+"/file", "mine").Code)
	kept, err := os.ReadFile(secret)
	require.NoError(t, err)
	require.Equal(t, "secret", string(kept))
	names, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, names, 1)
}

// halfReader breaks off in the middle.
type halfReader struct{ left int }

func (r *halfReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, errors.New("broken off")
	}
	n := min(len(p), r.left)
	r.left -= n
	return n, nil
}

func TestAnUploadIsWholeOrNotAtAll(t *testing.T) {
	for name, rooted := range map[string]bool{"any path": false, "with a root": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f, err := openFiles(map[bool]string{true: dir}[rooted])
			require.NoError(t, err)
			defer func() { require.NoError(t, f.close()) }()
			place, err := f.locate(filepath.Join(dir, "kept"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "kept"), []byte("old"), 0o640))
			_, err = f.write(place, &halfReader{100_000})
			require.ErrorContains(t, err, "broken off")
			content, err := os.ReadFile(filepath.Join(dir, "kept"))
			require.NoError(t, err)
			require.Equal(t, "old", string(content))
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, entries, 1, "no temporary file is left")

			size, err := f.write(place, strings.NewReader("new content"))
			require.NoError(t, err)
			require.EqualValues(t, 11, size)
			info, err := os.Stat(filepath.Join(dir, "kept"))
			require.NoError(t, err)
			require.EqualValues(t, 0o640, info.Mode().Perm(), "the mode stays")
		})
	}
}

func TestFileRoutes(t *testing.T) {
	b := newBox(t)
	at := func(name string) string { return filepath.Join(b.home, name) }
	t.Run("parents are made", func(t *testing.T) {
		require.Equal(t, `{"success":true,"file_size":2}`, b.upload(at("a/b/c"), "hi").Body.String())
		require.Equal(t, "hi", b.download(at("a/b/c")).Body.String())
	})
	t.Run("an upload through a link reaches its target", func(t *testing.T) {
		require.NoError(t, os.Symlink("a/b/c", at("link")))
		require.Equal(t, 200, b.upload(at("link"), "new").Code)
		require.Equal(t, "new", b.download(at("a/b/c")).Body.String())
		info, err := os.Lstat(at("link"))
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&os.ModeSymlink)
	})
	t.Run("a pipe blocks nothing and is no file", func(t *testing.T) {
		require.NoError(t, syscall.Mkfifo(at("pipe"), 0o600))
		require.JSONEq(t, `{"detail":"Path is not a file"}`, b.download(at("pipe")).Body.String())
		require.Equal(t, 400, b.upload(at("pipe"), "x").Code)
	})
	t.Run("a name beyond ASCII", func(t *testing.T) {
		require.Equal(t, 200, b.upload(at("é x"), "x").Code)
		require.Equal(t, "attachment; filename*=utf-8''%C3%A9%20x", b.download(at("é x")).Header().Get("Content-Disposition"))
	})
	t.Run("a range beyond the end", func(t *testing.T) {
		r := httptest.NewRequest(http.MethodGet, "/api/file/download?path="+at("a/b/c"), nil)
		r.Header.Set("X-Session-API-Key", "key-one")
		r.Header.Set("Range", "bytes=100-")
		require.Equal(t, 416, b.serve(r).Code)
	})
	t.Run("directories", func(t *testing.T) {
		create := func(name string) *httptest.ResponseRecorder {
			return b.send("POST", "/api/file/create_directory?path="+url.QueryEscape(name), "")
		}
		require.Equal(t, `{"success":true}`, create(at("d/one")).Body.String())
		require.Equal(t, 200, create(at("d/one")).Code, "again")
		require.Equal(t, 200, create(at("d/Two")).Code)
		require.Equal(t, 200, create(at("d/.hidden")).Code)
		require.JSONEq(t, `{"detail":"Path is not a directory"}`, create(at("a/b/c")).Body.String())
		require.JSONEq(t, `{"detail":"A parent of the path is not a directory"}`, create(at("a/b/c/d")).Body.String())
		require.JSONEq(t, `{"detail":"Path must be absolute"}`, create("x").Body.String())
		require.NoError(t, os.Symlink("one", at("d/link")))
		require.Equal(t, 200, b.upload(at("d/file"), "x").Code)

		list := func(more string) string {
			return b.send("GET", "/api/file/search_subdirs?path="+at("d")+more, "").Body.String()
		}
		one, two := `{"name":"one","path":"`+at("d/one")+`"}`, `{"name":"Two","path":"`+at("d/Two")+`"}`
		hidden := `{"name":".hidden","path":"` + at("d/.hidden") + `"}`
		require.Equal(t, `{"items":[`+one+`,`+two+`],"next_page_id":null}`, list(""))
		require.Equal(t, `{"items":[`+one+`],"next_page_id":"Two"}`, list("&limit=1"))
		require.Equal(t, `{"items":[`+two+`],"next_page_id":null}`, list("&limit=1&page_id=Two"))
		require.Equal(t, `{"items":[`+hidden+`,`+one+`,`+two+`],"next_page_id":null}`, list("&include_hidden=true"))
	})
	t.Run("home lists its directories", func(t *testing.T) {
		require.Equal(t, `{"home":"`+b.home+`","favorites":[{"label":"a","path":"`+at("a")+`"},{"label":"d","path":"`+at("d")+`"}],"locations":[{"label":"/","path":"/"}]}`,
			b.send("GET", "/api/file/home", "").Body.String())
	})
}
