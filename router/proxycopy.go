package router

import (
	"errors"
	"io"
	"net/http/httputil"
	"sync"
)

// How bytes go through the proxy, so that thousands of quiet WebSockets cost little memory.

// slim is the box's end of a WebSocket. It copies with small buffers: most of the time there is nothing to copy.
type slim struct{ io.ReadWriteCloser }

// slimBuffer is the size of the buffers, in bytes: two a connection.
const slimBuffer = 2 << 10

// errEnded ends both directions when the box's has ended: a caller that does not notice must not hold the box.
var errEnded = errors.New("the box has ended the connection")

// WriteTo implements io.WriterTo, for io.Copy.
func (c slim) WriteTo(w io.Writer) (int64, error) {
	n, err := copySlim(w, c.ReadWriteCloser)
	if err == nil {
		err = errEnded
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom, for io.Copy.
func (c slim) ReadFrom(r io.Reader) (int64, error) { return copySlim(c.ReadWriteCloser, r) }

func copySlim(w io.Writer, r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, slimBuffer))
}

// buffers lends the buffers of plain answers.
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
