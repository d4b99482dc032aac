//go:build !unix

package chaos

import (
	"context"
	"errors"
)

// Package testbroker starts nodes on Unix only.
var errUnix = errors.New("chaos needs Unix")

func lockShared(string) (func(), error) { return nil, errUnix }

func lockAlone(context.Context, string) (func(), error) { return nil, errUnix }
