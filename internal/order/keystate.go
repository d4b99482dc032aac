package order

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// maxKey is the longest key that does not change, so that the headers of a copy and of a mark fit
// into a frame.
const maxKey = 1024

// KeyText returns a key as it stands in headers and in answers: as text that is not too long.
func KeyText(key string) string {
	if len(key) > maxKey {
		key = fmt.Sprintf("%.64q %x", key, sha256.Sum256([]byte(key)))
	}
	if !utf8.ValidString(key) {
		key = strconv.QuoteToASCII(key)
	}
	return key
}

// plainKey is a KeyState without methods. JSON has no bytes that are not UTF-8.
type plainKey KeyState

type keyJSON struct {
	plainKey
	// KeyBytes is the key if it is not UTF-8.
	KeyBytes []byte `json:"key_bytes,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (k KeyState) MarshalJSON() ([]byte, error) {
	j := keyJSON{plainKey: plainKey(k)}
	if !utf8.ValidString(k.Key) {
		j.KeyBytes = []byte(k.Key)
	}
	return json.Marshal(j)
}

// UnmarshalJSON implements json.Unmarshaler.
func (k *KeyState) UnmarshalJSON(data []byte) error {
	var j keyJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*k = KeyState(j.plainKey)
	if j.KeyBytes != nil {
		k.Key = string(j.KeyBytes)
	}
	return nil
}
