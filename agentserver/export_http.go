package agentserver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"automation/agentserver/conversation"
	"automation/agentserver/export"
)

// downloadTrajectory sends the history of a conversation, archived or not, as a zip without secrets. It is no activity: it is
// taken before a box is paused or deleted (S0-072, S0-073).
func (s *Server) downloadTrajectory(w http.ResponseWriter, r *http.Request) {
	var check fields
	id := check.id(r.PathValue("id"), "path", "conversation_id")
	if check.answered(w) {
		return
	}
	dir, err := s.histories.Directory(id)
	if errors.Is(err, fs.ErrNotExist) {
		refuse(w, http.StatusNotFound, "Conversation not found")
		return
	}
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	defer dir.Close()
	s.sendExport(w, conversation.Plain(id)+".zip", "application/octet-stream", func(to io.Writer) error {
		return export.Trajectory(r.Context(), to, dir, conversation.Plain(id), export.NewRedactor(s.config.SessionKeys...))
	})
}

// archiveWorkspace sends a directory of the box as a git patch or as a tarball. Unlike in the contract it is no activity, for
// the same reason.
func (s *Server) archiveWorkspace(w http.ResponseWriter, r *http.Request) {
	var check fields
	query := r.URL.Query()
	format := check.oneOf(query, "format", "literal_error", "git-delta", "tar.gz")
	request := export.Request{
		BaseRef: query.Get("base_ref"), Excludes: query["exclude"],
		Defaults: check.boolean(query, "use_default_excludes", true), Secrets: check.boolean(query, "include_secrets", false),
	}
	name := check.path(query)
	if check.answered(w) {
		return
	}
	var err error
	if request.Directory, err = s.files.directory(name); err != nil {
		refuseFile(w, err)
		return
	}
	found, err := export.Find(r.Context(), request)
	if err == nil && format != "tar.gz" {
		err = found.Base(r.Context())
	}
	if wrong, ok := errors.AsType[*export.RequestError](err); ok {
		refuse(w, http.StatusBadRequest, wrong.Error())
		return
	}
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	header := w.Header()
	for name, value := range found.Describe() {
		header.Set(name, url.PathEscape(value))
	}
	base := filepath.Base(found.Root)
	if format == "tar.gz" {
		s.sendExport(w, base+".tar.gz", "application/gzip", func(to io.Writer) error { return found.Tarball(r.Context(), to) })
		return
	}
	s.sendExport(w, base+".patch", "text/x-patch; charset=utf-8", func(to io.Writer) error { return found.Patch(r.Context(), to) })
}

// sendExport writes an export to a file of its own, which has no name any more, and sends it when it is whole: an export that
// fails is an error and never a short file.
func (s *Server) sendExport(w http.ResponseWriter, name, contentType string, write func(io.Writer) error) {
	file, err := s.exportFile()
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	defer file.Close()
	digest := sha256.New()
	if err := write(io.MultiWriter(file, digest)); err != nil {
		for _, header := range []string{"X-Archive-Repo-Root", "X-Archive-Branch", "X-Archive-Head-Commit"} {
			w.Header().Del(header)
		}
		internalError(w, "500: "+err.Error())
		return
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Content-Disposition", disposition(name))
	header.Set("Content-Length", strconv.FormatInt(size, 10))
	header.Set("ETag", `"`+hex.EncodeToString(digest.Sum(nil))+`"`)
	if _, err := io.Copy(w, file); err != nil {
		panic(http.ErrAbortHandler) // cut, so that nobody takes it for the whole
	}
}

// exportFile makes a file that goes with its handle, whatever becomes of the server.
func (s *Server) exportFile() (*os.File, error) {
	dir := filepath.Join(s.config.PersistenceDir, "storage")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	file, err := os.CreateTemp(dir, ".export-*")
	if err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
