package config

import "strings"

// InBucket reports whether blobs are kept in a bucket.
func (s Storage) InBucket() bool { return s.FileStore == "s3" }

// checkStorage refuses a bucket that cannot be used.
func (c *Config) checkStorage(r *reader) {
	s := &c.Storage
	if !s.InBucket() {
		return
	}
	s.Endpoint = strings.TrimPrefix(strings.TrimPrefix(s.Endpoint, "https://"), "http://")
	if s.Bucket == "" {
		r.problems = append(r.problems, Problem{Name: "AWS_S3_BUCKET", Want: "FILE_STORE=s3 needs the name of a bucket"})
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		r.problems = append(r.problems, Problem{Name: "AWS_SECRET_ACCESS_KEY", Want: "want it together with AWS_ACCESS_KEY_ID, or neither"})
	}
}
