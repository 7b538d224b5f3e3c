package router

import (
	"net/http/httputil"
	"sync"
)

// buffers lends the buffers of the answers that are passed on.
var buffers httputil.BufferPool = &bufferPool{}

type bufferPool struct{ pool sync.Pool }

// answerBuffer is their size, in bytes.
const answerBuffer = 32 << 10

// Get implements httputil.BufferPool.
func (p *bufferPool) Get() []byte {
	if lent, ok := p.pool.Get().(*[answerBuffer]byte); ok {
		return lent[:]
	}
	return make([]byte, answerBuffer)
}

// Put implements httputil.BufferPool.
func (p *bufferPool) Put(b []byte) { p.pool.Put((*[answerBuffer]byte)(b)) }
