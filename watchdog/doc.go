// Package watchdog looks after runs and boxes that nobody waits for: runs whose command or deadline is over, boxes that are
// due, ordered or lost, and records that have outlived their use. One file is one duty, a constructor of a loop.Loop.
package watchdog
