//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package job

import "os"

// lockFile opens a file. Nothing on these systems unlocks it after a kill, so it is not locked.
func lockFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
}
