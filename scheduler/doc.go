// Package scheduler starts runs and executes them: NextFire says when a schedule fires (pure), the schedule duty turns due
// schedules into PENDING runs, and the dispatch duty carries each run from its claim to the start of its command. What
// follows the start belongs to the callback and to the watchdog.
package scheduler
