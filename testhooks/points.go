// Package testhooks lets tests kill a service at a named point and move its clock. All of it is behind the build tag testhooks:
// a release has neither, and a call of Reached compiles to nothing there.
package testhooks

// Point is a place on the way of a run or a box at which a kill must lose nothing. This file lists them all.
type Point string

// The points, in the order in which a run passes them. Each has one call of Reached.
const (
	// DispatchClaimed: the run is RUNNING and its box has a row; no provider was asked.
	DispatchClaimed Point = "dispatch.claimed"
	// DispatchCreateSent: the row says that the create was sent, and it is about to be.
	DispatchCreateSent Point = "dispatch.create_sent"
	// DispatchCreateAnswered: the provider has named the box, which is not stored.
	DispatchCreateAnswered Point = "dispatch.create_answered"
	// DispatchRecorded: what the provider named is stored.
	DispatchRecorded Point = "dispatch.recorded"
	// DispatchUploaded: the files of the run are in the box.
	DispatchUploaded Point = "dispatch.uploaded"
	// DispatchStartSent: the run says that its command was started, and it is about to be.
	DispatchStartSent Point = "dispatch.start_sent"
	// DispatchStarted: the box has named the command, which is not stored.
	DispatchStarted Point = "dispatch.started"

	// FinishCommitted: the run is terminal and its box ordered; whoever ended it has no answer.
	FinishCommitted Point = "finish.committed"

	// SettleClaimed: the settler has a box, and has done nothing with it.
	SettleClaimed Point = "settle.claimed"
	// SettleBeforeCall: a suspend, resume or delete is about to be sent.
	SettleBeforeCall Point = "settle.before_call"
	// SettleAfterCall: the provider has answered it; nothing is recorded.
	SettleAfterCall Point = "settle.after_call"
	// SettleRecorded: a step is recorded, and the next not decided on.
	SettleRecorded Point = "settle.recorded"

	// JanitorOrdered: due boxes are ordered deleted; no settler was woken.
	JanitorOrdered Point = "janitor.ordered"
)
