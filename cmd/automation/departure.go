package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The times of a departure.
const (
	askedLately = 30 * time.Second // a balancer that asks at least so often is waited for
	heardWithin = 5 * time.Second  // and so long at most
)

// departure lets those who ask whether the service is ready hear that it is not any more, before its port closes.
type departure struct {
	begun atomic.Bool
	asked atomic.Int64 // when somebody last asked, in Unix nanoseconds
	once  sync.Once
	heard chan struct{} // closed when somebody has asked since it began
}

func newDeparture() *departure { return &departure{heard: make(chan struct{})} }

// ask is called for each question, and reports whether the service is leaving.
func (d *departure) ask() bool {
	if !d.begun.Load() {
		d.asked.Store(time.Now().UnixNano())
		return false
	}
	d.once.Do(func() { close(d.heard) })
	return true
}

// begin starts it, and returns when somebody who asks regularly has heard of it, or nobody does.
func (d *departure) begin(ctx context.Context) {
	d.begun.Store(true)
	if time.Since(time.Unix(0, d.asked.Load())) > askedLately {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, heardWithin)
	defer cancel()
	select {
	case <-d.heard:
	case <-ctx.Done():
	}
}
