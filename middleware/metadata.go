package middleware

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

const (
	// MaxMetadataBytes is the most that kept metadata takes, keys and values of a
	// message together.
	MaxMetadataBytes = 8 << 10
	// maxKeyBytes is the longest name of a header; a longer one would end the
	// connection.
	maxKeyBytes = 255
)

// WithKeptMetadata names keys of the metadata that are kept: what a handler or a
// middleware has set them to when the handler fails is what the next attempt
// sees, and the dead letter has. All other changes of the metadata are lost, for
// what is republished is the message as it arrived. Deleting a kept key has no
// effect. A value that is not UTF-8 or with which all together come to more than
// MaxMetadataBytes is not kept, and logged.
//
// An empty key is an error, one that is longer than 255 bytes or no UTF-8, and
// one that belongs to this library or to the broker: what begins with "millpond-"
// or "x-", CC and BCC. Without it only Watermill's correlation id is kept, which
// always is.
func WithKeptMetadata(keys ...string) Option {
	return func(s *settings) {
		for _, key := range keys {
			if why := unfit(key); why != "" {
				s.refuse("WithKeptMetadata: key %.300q %s", key, why)
				continue
			}
			if !slices.Contains(s.kept, key) {
				s.kept = append(s.kept, key)
			}
		}
	}
}

// unfit says why a key cannot be kept; "" if it can.
func unfit(key string) string {
	switch {
	case key == "":
		return "is empty"
	case len(key) > maxKeyBytes:
		return fmt.Sprintf("is longer than %d bytes", maxKeyBytes)
	case !utf8.ValidString(key):
		return "is not UTF-8"
	case strings.HasPrefix(key, "millpond-"):
		return "belongs to this library"
	case strings.HasPrefix(key, "x-"), key == "CC", key == "BCC":
		return "belongs to the broker"
	}
	return ""
}

// kept are the metadata keys whose values travel, in order of importance.
type kept []string

var alwaysKept = kept{wmiddleware.CorrelationIDMetadataKey}

// of returns the keys that are there, and their values; nil if there are none.
// leftOut is told of those that cannot be kept.
func (k kept) of(metadata message.Metadata, leftOut func(key, why string)) map[string]string {
	var found map[string]string
	left := MaxMetadataBytes
	for _, key := range k {
		value, ok := metadata[key]
		if !ok {
			continue
		}
		size := len(key) + len(value)
		switch {
		case !utf8.ValidString(value):
			leftOut(key, "not UTF-8")
		case size > left:
			leftOut(key, "too long")
		default:
			if found == nil {
				found = make(map[string]string, len(k))
			}
			found[key] = value
			left -= size
		}
	}
	return found
}
