// Package blobtest plays an object store with the S3 protocol in memory, as far as blob.S3 uses it, and its faults.
package blobtest

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The credentials that S3 lets in.
const (
	AccessKey = "blob-test"
	SecretKey = "blob-test-secret"
	Bucket    = "blobs"
)

// S3 is one bucket. Requests that are not signed with AccessKey are refused.
type S3 struct {
	server *httptest.Server

	mu      sync.Mutex
	made    bool
	objects map[string][]byte
	parts   map[string]map[int][]byte // by upload id
	keys    map[string]string         // of uploads
	uploads int
	fail    func(*http.Request) int
}

// NewS3 starts one with its bucket; it is closed with the test.
func NewS3(tb testing.TB) *S3 {
	tb.Helper()
	s := &S3{made: true, objects: map[string][]byte{}, parts: map[string]map[int][]byte{}, keys: map[string]string{}}
	s.server = httptest.NewServer(http.HandlerFunc(s.serve))
	tb.Cleanup(s.server.Close)
	return s
}

// Endpoint is its host and port, without TLS.
func (s *S3) Endpoint() string { return s.server.Listener.Addr().String() }

// Drop removes the bucket with all that is in it.
func (s *S3) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made, s.objects = false, map[string][]byte{}
}

// Fail lets requests for which status is not 0 answer with it.
func (s *S3) Fail(status func(*http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = status
}

// Keys lists what is stored, in order.
func (s *S3) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Unfinished is how many uploads in parts are neither joined nor given up.
func (s *S3) Unfinished() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.parts)
}

func (s *S3) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		if status := fail(r); status != 0 {
			refuse(w, status, "InternalError")
			return
		}
	}
	body, err := content(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	if !strings.Contains(r.Header.Get("Authorization"), "Credential="+AccessKey+"/") {
		refuse(w, http.StatusForbidden, "AccessDenied")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case bucket != Bucket || !s.made && (key != "" || r.Method != http.MethodPut):
		refuse(w, http.StatusNotFound, "NoSuchBucket")
	case key == "":
		s.bucket(w, r)
	case r.URL.Query().Has("uploadId") || r.URL.Query().Has("uploads"):
		s.multipart(w, r, key, body)
	default:
		s.object(w, r, key, body)
	}
}

func (s *S3) bucket(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPut:
		s.made = true
	case r.URL.Query().Has("location"):
		reply(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></LocationConstraint>`)
	case r.URL.Query().Has("uploads"):
		var list strings.Builder
		for id, key := range s.keys {
			fmt.Fprintf(&list, "<Upload><Key>%s</Key><UploadId>%s</UploadId></Upload>", escape(key), id)
		}
		reply(w, "<ListMultipartUploadsResult>"+list.String()+"</ListMultipartUploadsResult>")
	}
}

func (s *S3) object(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	stored, there := s.objects[key]
	switch {
	case r.Method == http.MethodPut:
		s.objects[key] = body
		w.Header().Set("ETag", `"whole"`)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case !there:
		refuse(w, http.StatusNotFound, "NoSuchKey")
	default:
		w.Header().Set("ETag", `"whole"`)
		w.Header().Set("Last-Modified", "Mon, 01 Jun 2026 12:00:00 GMT")
		w.Header().Set("Content-Length", strconv.Itoa(len(stored)))
		_, _ = w.Write(stored)
	}
}

func (s *S3) multipart(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	query := r.URL.Query()
	id := query.Get("uploadId")
	switch {
	case query.Has("uploads"):
		s.uploads++
		id = strconv.Itoa(s.uploads)
		s.parts[id], s.keys[id] = map[int][]byte{}, key
		reply(w, "<InitiateMultipartUploadResult><Bucket>"+Bucket+"</Bucket><Key>"+escape(key)+"</Key><UploadId>"+id+"</UploadId></InitiateMultipartUploadResult>")
	case s.parts[id] == nil:
		refuse(w, http.StatusNotFound, "NoSuchUpload")
	case r.Method == http.MethodPut:
		number, _ := strconv.Atoi(query.Get("partNumber"))
		s.parts[id][number] = body
		w.Header().Set("ETag", `"part`+query.Get("partNumber")+`"`)
	case r.Method == http.MethodPost:
		var whole []byte
		for _, number := range slices.Sorted(maps.Keys(s.parts[id])) {
			whole = append(whole, s.parts[id][number]...)
		}
		s.objects[key] = whole
		delete(s.parts, id)
		delete(s.keys, id)
		reply(w, "<CompleteMultipartUploadResult><Bucket>"+Bucket+"</Bucket><Key>"+escape(key)+`</Key><ETag>"joined"</ETag></CompleteMultipartUploadResult>`)
	default:
		delete(s.parts, id)
		delete(s.keys, id)
		w.WriteHeader(http.StatusNoContent)
	}
}

// content is the body of a request, without the frames of one that is signed as it is streamed.
func content(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	var whole bytes.Buffer
	frames := bufio.NewReader(r.Body)
	for {
		line, err := frames.ReadString('\n')
		if err != nil {
			return nil, err
		}
		length, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(length, 16, 64)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			_, err := io.Copy(io.Discard, frames)
			return whole.Bytes(), err
		}
		if _, err := io.CopyN(&whole, frames, n); err != nil {
			return nil, err
		}
		if _, err := frames.Discard(2); err != nil {
			return nil, err
		}
	}
}

func reply(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/xml")
	_, _ = io.WriteString(w, xml.Header+text)
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, xml.Header+"<Error><Code>"+code+"</Code><Message>played</Message></Error>")
}

func escape(text string) string {
	var safe bytes.Buffer
	_ = xml.EscapeText(&safe, []byte(text))
	return safe.String()
}
