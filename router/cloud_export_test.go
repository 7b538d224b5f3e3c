package router

import "net/http"

// SetTransport lets a test do without a network.
func (c *Cloud) SetTransport(t http.RoundTripper) { c.http.Transport = t }
