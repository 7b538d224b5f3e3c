package sandbox

import "github.com/google/uuid"

// StartMarker is a text that the start command of a run contains, and no other command of it (the download of its tarball
// names the same file): by it Agent.FindCommand finds the command when its id was lost. It is part of the line that the
// contract fixes (section 4.2), whatever directory the run's files lie in.
func StartMarker(run uuid.UUID) string { return run.String() + ".tar.gz.env' && . '" }
