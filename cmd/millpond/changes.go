package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/urfave/cli/v3"
)

// changes are made to many letters.
type changes struct {
	set   amqp.Table
	unset []string
	patch jsonpatch.Patch
}

// changesOf reads the flags; nil without changes.
func changesOf(c *cli.Command) (*changes, error) {
	made := &changes{set: amqp.Table{}, unset: c.StringSlice("unset-header")}
	for _, text := range c.StringSlice("set-header") {
		key, value, err := lettertext.ParseHeader(text)
		if err != nil {
			return nil, usage("--set-header: %v", err)
		}
		if _, twice := made.set[key]; twice || slices.Contains(made.unset, key) {
			return nil, usage("--set-header: the header %q is named twice", key)
		}
		made.set[key] = value
	}
	for _, key := range made.unset {
		if err := lettertext.Check(key); err != nil {
			return nil, usage("--unset-header: %v", err)
		}
	}
	if c.IsSet("patch") {
		var err error
		if made.patch, err = patchOf(c.String("patch")); err != nil {
			return nil, usage("--patch: %v", err)
		}
	}
	if len(made.set)+len(made.unset) == 0 && made.patch == nil {
		return nil, nil
	}
	return made, nil
}

// patchOf reads a patch, or the file that holds it.
func patchOf(text string) (jsonpatch.Patch, error) {
	data := []byte(text)
	if !strings.HasPrefix(strings.TrimSpace(text), "[") {
		var err error
		if data, err = os.ReadFile(text); err != nil {
			return nil, err
		}
	}
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, fmt.Errorf("it is no JSON patch (RFC 6902): %w", err)
	}
	if len(patch) == 0 {
		return nil, errors.New("it has no operation")
	}
	return patch, nil
}

// errStays is the error of a letter that cannot be changed as asked.
var errStays = errors.New("it cannot be changed so")

// make changes a message, and reports whether it is another one now.
func (m *changes) make(msg *amqp.Publishing) (changed bool, err error) {
	if m.patch != nil {
		if !json.Valid(msg.Body) {
			return false, fmt.Errorf("%w: its payload is no JSON", errStays)
		}
		options := jsonpatch.NewApplyOptions()
		options.EscapeHTML, options.SupportNegativeIndices = false, false
		options.AccumulatedCopySizeLimit = 64 << 20
		body, err := m.patch.ApplyWithOptions(msg.Body, options)
		if err != nil {
			return false, fmt.Errorf("%w: %w", errStays, err)
		}
		changed, msg.Body = !bytes.Equal(body, msg.Body), body
	}
	for _, key := range m.unset {
		if _, there := msg.Headers[key]; there {
			changed = true
			delete(msg.Headers, key)
		}
	}
	for key, value := range m.set {
		if was, there := msg.Headers[key]; !there || !reflect.DeepEqual(was, value) {
			changed = true
			msg.Headers[key] = value
		}
	}
	return changed, nil
}
