package sandbox

import (
	"errors"
	"time"
)

// ErrNotMade joins an error of Create after which the provider certainly made nothing: it was not asked, or asked us to wait.
// Without it an error that is not definite leaves open whether a box exists.
var ErrNotMade = errors.New("nothing was made")

// RetryAfter is how long the provider asked us to wait before the next call; 0: it did not say.
func RetryAfter(err error) time.Duration {
	if answer, ok := errors.AsType[*ProviderError](err); ok {
		return answer.RetryAfter
	}
	return 0
}
