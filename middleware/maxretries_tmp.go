package middleware

import (
	"math"

	"github.com/millpond-go/millpond/backoff"
)

// maxRetries and maxMatchCount stand in for backoff.MaxRetries and backoff.MaxMatchCount until
// those are merged. Delete this file then.
func maxRetries(policy backoff.Policy) (n int, known bool) {
	switch p := policy.(type) {
	case backoff.None:
		return 0, true
	case backoff.List:
		return len(p), true
	case backoff.Constant:
		return p.Retries, p.Retries > 0
	case backoff.Linear:
		return p.Retries, p.Retries > 0
	case backoff.Exponential:
		return p.Retries, p.Retries > 0
	case backoff.Fibonacci:
		return p.Retries, p.Retries > 0
	case backoff.DecorrelatedJitter:
		return p.Retries, p.Retries > 0
	case backoff.FullJitter:
		return maxRetries(p.Policy)
	case backoff.EqualJitter:
		return maxRetries(p.Policy)
	case backoff.BoundedJitter:
		return maxRetries(p.Policy)
	case backoff.Limit:
		if n, known = maxRetries(p.Policy); known {
			return min(n, p.Retries), true
		}
		return p.Retries, true
	case backoff.Cap:
		return maxRetries(p.Policy)
	case backoff.MaxAge:
		return maxRetries(p.Policy)
	case backoff.Unbounded:
		return maxRetries(p.Policy)
	case backoff.ByError:
		n, known = maxRetries(p.Default)
		for _, c := range p.Cases {
			most, ends := maxRetries(c.Policy)
			n, known = max(n, most), known && ends
		}
		return n, known
	}
	return 0, false
}

func maxMatchCount(policy backoff.Policy) int {
	switch p := policy.(type) {
	case backoff.FullJitter:
		return maxMatchCount(p.Policy)
	case backoff.EqualJitter:
		return maxMatchCount(p.Policy)
	case backoff.BoundedJitter:
		return maxMatchCount(p.Policy)
	case backoff.Limit:
		return min(maxMatchCount(p.Policy), p.Retries)
	case backoff.Cap:
		return maxMatchCount(p.Policy)
	case backoff.MaxAge:
		return maxMatchCount(p.Policy)
	case backoff.Unbounded:
		return maxMatchCount(p.Policy)
	case backoff.ByError:
		return math.MaxInt
	}
	return 0
}
