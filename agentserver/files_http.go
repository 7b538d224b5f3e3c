package agentserver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// refuseFile answers with an error of the file routes.
func refuseFile(w http.ResponseWriter, err error) {
	if known, ok := errors.AsType[*refusal](err); ok {
		refuse(w, known.status, known.text)
		return
	}
	internalError(w, "500: "+err.Error())
}

// uploadFile stores the multipart field `file` under the path. The clock moves once the request is valid, whatever becomes
// of it, and again at its end: an upload is work for as long as it takes.
func (s *Server) uploadFile(w http.ResponseWriter, r *http.Request) {
	var check fields
	name := check.path(r.URL.Query())
	part := filePart(r)
	if part == nil {
		check.add(missing("body", "file"))
	}
	if check.answered(w) {
		return
	}
	s.idle.touch()
	defer s.idle.touch()
	place, err := s.files.locate(name)
	var size int64
	if err == nil {
		size, err = s.files.write(place, part)
	}
	if err != nil {
		refuseFile(w, err)
		return
	}
	respond(w, http.StatusOK, struct {
		Success  bool  `json:"success"`
		FileSize int64 `json:"file_size"`
	}{true, size})
}

// filePart returns the field `file` of a form, to be read as it arrives; nil when there is none.
func filePart(r *http.Request) *multipart.Part {
	form, err := r.MultipartReader()
	if err != nil {
		return nil
	}
	for {
		part, err := form.NextPart()
		if err != nil {
			return nil
		}
		if part.FormName() == "file" && part.FileName() != "" {
			return part
		}
	}
}

// downloadFile sends a file, or the ranges asked for.
func (s *Server) downloadFile(w http.ResponseWriter, r *http.Request) {
	var check fields
	name := check.path(r.URL.Query())
	if check.answered(w) {
		return
	}
	s.idle.touch()
	defer s.idle.touch()
	file, info, err := s.openRegular(name)
	if err != nil {
		refuseFile(w, err)
		return
	}
	defer file.Close()
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Disposition", disposition(info.Name()))
	digest := sha256.Sum256(fmt.Appendf(nil, "%d-%d", info.ModTime().UnixNano(), info.Size()))
	header.Set("ETag", `"`+hex.EncodeToString(digest[:16])+`"`)
	http.ServeContent(w, r, "", info.ModTime(), file)
}

func (s *Server) openRegular(name string) (*os.File, fs.FileInfo, error) {
	place, err := s.files.locate(name)
	if err != nil {
		return nil, nil, err
	}
	file, err := s.files.open(place)
	if err != nil {
		return nil, nil, explain(err, errNotFound)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotFile
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
}

// disposition names the file for whoever saves it.
func disposition(name string) string {
	if escaped := url.PathEscape(name); escaped != name {
		return "attachment; filename*=utf-8''" + escaped
	}
	return `attachment; filename="` + name + `"`
}

// createDirectory makes a directory and its parents.
func (s *Server) createDirectory(w http.ResponseWriter, r *http.Request) {
	var check fields
	name := check.path(r.URL.Query())
	if check.answered(w) {
		return
	}
	place, err := s.files.locate(name)
	if err == nil {
		if info, failed := s.files.stat(place); failed == nil && !info.IsDir() {
			err = errNotDir
		} else {
			err = explain(s.files.makeDirectory(place), errParent)
		}
	}
	if err != nil {
		refuseFile(w, err)
		return
	}
	respond(w, http.StatusOK, success{true})
}

// entry is a place in the answer of home.
type entry struct {
	Label string `json:"label"`
	Path  string `json:"path"`
}

// home names the home directory, the directories in it, and the root of what can be reached.
func (s *Server) home(w http.ResponseWriter, r *http.Request) {
	var check fields
	hidden := check.boolean(r.URL.Query(), "include_hidden", false)
	if check.answered(w) {
		return
	}
	favorites := []entry{}
	if place, err := s.files.locate(s.config.Home); err == nil {
		names, err := s.subdirectories(place, hidden)
		if err != nil {
			s.log.Warn("home directory cannot be listed", "error", err)
		}
		for _, name := range names {
			favorites = append(favorites, entry{name, path.Join(s.config.Home, name)})
		}
	}
	top := "/"
	if s.files.rootPath != "" {
		top = s.files.rootPath
	}
	respond(w, http.StatusOK, struct {
		Home      string  `json:"home"`
		Favorites []entry `json:"favorites"`
		Locations []entry `json:"locations"`
	}{s.config.Home, favorites, []entry{{top, top}}})
}

// subdirectories lists the directories in one, sorted without regard to case; links and files are left out.
func (s *Server) subdirectories(place string, hidden bool) ([]string, error) {
	dir, err := s.files.open(place)
	if err != nil {
		return nil, explain(err, errNotFound)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	names := []string{}
	for _, e := range entries {
		if e.IsDir() && (hidden || !strings.HasPrefix(e.Name(), ".")) {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if c := strings.Compare(strings.ToLower(a), strings.ToLower(b)); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return names, err
}

// subdirectory is an item of searchSubdirs.
type subdirectory struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// searchSubdirs lists the directories in one, a page at a time; a page is named by its first directory.
func (s *Server) searchSubdirs(w http.ResponseWriter, r *http.Request) {
	var check fields
	params := r.URL.Query()
	name := check.path(params)
	limit := check.limit(params)
	hidden := check.boolean(params, "include_hidden", false)
	if check.answered(w) {
		return
	}
	names, err := s.listed(name, hidden)
	if err != nil {
		refuseFile(w, err)
		return
	}
	start := max(0, slices.Index(names, params.Get("page_id")))
	answer := struct {
		Items    []subdirectory `json:"items"`
		NextPage *string        `json:"next_page_id"`
	}{Items: []subdirectory{}}
	for i, n := range names[start:] {
		if i == limit {
			answer.NextPage = &n
			break
		}
		answer.Items = append(answer.Items, subdirectory{n, filepath.Join(name, n)})
	}
	respond(w, http.StatusOK, answer)
}

func (s *Server) listed(name string, hidden bool) ([]string, error) {
	place, err := s.files.locate(name)
	if err != nil {
		return nil, err
	}
	info, err := s.files.stat(place)
	if err != nil {
		return nil, explain(err, errNotFound)
	}
	if !info.IsDir() {
		return nil, errNotDir
	}
	return s.subdirectories(place, hidden)
}
