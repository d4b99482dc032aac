package operate

import "time"

// SetHoldLimit changes how long messages are held, until restore is called. Tests
// that use it do not run in parallel.
func SetHoldLimit(d time.Duration) (restore func()) {
	before := holdLimit
	holdLimit = d
	return func() { holdLimit = before }
}
