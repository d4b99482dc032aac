package order

import (
	"encoding/json"
	"unicode/utf8"
)

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
