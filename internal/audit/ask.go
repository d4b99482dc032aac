package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Runner calls a function with a new channel, because an error of the broker closes the
// channel that it happens on.
type Runner = func(context.Context, func(*amqp.Channel) error) error

// Passive asks for a queue and changes nothing. It counts ready messages and consumers.
func Passive(ctx context.Context, run Runner, name string) (amqp.Queue, error) {
	var found amqp.Queue
	err := run(ctx, func(ch *amqp.Channel) (err error) {
		found, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return amqp.Queue{}, err // the function may still be writing to found
	}
	return found, nil
}

// PassiveAll is Passive for many queues, on one channel as long as they exist. refused has the
// broker's answer for a queue that does not exist, cannot be reached, or is exclusive to another
// connection.
func PassiveAll(
	ctx context.Context, run Runner, names []string,
) (found map[string]amqp.Queue, refused map[string]error, err error) {
	found, refused = make(map[string]amqp.Queue, len(names)), map[string]error{}
	for len(names) > 0 {
		answers := make(chan []amqp.Queue, 1)
		err := run(ctx, func(ch *amqp.Channel) (err error) {
			var list []amqp.Queue
			for i := 0; i < len(names) && err == nil; i++ {
				var q amqp.Queue
				if q, err = ch.QueueDeclarePassive(names[i], true, false, false, false, nil); err == nil {
					list = append(list, q)
				}
			}
			answers <- list
			return err
		})
		if err != nil && !IsCode(err, amqp.NotFound) && !IsCode(err, amqp.ResourceLocked) {
			return nil, nil, err
		}
		list := <-answers
		for _, q := range list {
			found[q.Name] = q
		}
		if names = names[len(list):]; err != nil {
			refused[names[0]], names = err, names[1:]
		}
	}
	return found, refused, nil
}

// IsCode reports whether err is the broker's answer with this reply code.
func IsCode(err error, code int) bool {
	var answer *amqp.Error
	return errors.As(err, &answer) && answer.Code == code
}

// Version is the broker's version as far as its behaviour depends on it. The zero value stands for
// an unknown version and counts as the oldest.
type Version struct{ Major, Minor int }

// VersionOf reads the server properties of a connection.
func VersionOf(properties amqp.Table) Version {
	text, _ := properties["version"].(string)
	major, rest, _ := strings.Cut(text, ".")
	minor, _, _ := strings.Cut(rest, ".")
	var v Version
	v.Major, _ = strconv.Atoi(major)
	v.Minor, _ = strconv.Atoi(minor)
	return v
}

// AtLeast reports whether the version is major.minor or later.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Conflict is the broker's answer that a queue or an exchange exists with another argument.
type Conflict struct {
	Kind, Name, Argument string
	// Wanted was declared, Found is on the broker. Found is empty where a long name leaves no room
	// for it, because the broker cuts its text at 255 bytes.
	Wanted, Found string
}

// The broker's text for a conflict (F10). It is the only text of the broker that is read.
var (
	inequivalent = regexp.MustCompile(
		`inequivalent arg '([^']*)' for (queue|exchange) '(?:(.*)' in vhost ')?`)
	difference = regexp.MustCompile(`: received (.*) but current is (.*)$`)
)

// ReadConflict reads the broker's refusal of a declare with args; nil if it is about something
// else. The text may be about an exchange that is declared beside the queue.
func ReadConflict(kind, name string, args amqp.Table, err error) *Conflict {
	var answer *amqp.Error
	if !errors.As(err, &answer) || answer.Code != amqp.PreconditionFailed {
		return nil
	}
	m := inequivalent.FindStringSubmatch(answer.Reason)
	if m == nil {
		return nil
	}
	c := &Conflict{Kind: kind, Name: name, Argument: m[1]}
	if m[2] != kind && m[3] != "" {
		c.Kind, c.Name, args = m[2], m[3], nil
	}
	if m := difference.FindStringSubmatch(answer.Reason); m != nil {
		c.Wanted, c.Found = m[1], m[2]
	} else if value, ok := args[c.Argument]; ok {
		c.Wanted = fmt.Sprintf("'%v'", value)
	} else {
		c.Wanted = "none"
	}
	return c
}

// WholeNumber reads a number of an argument or a policy.
func WholeNumber(value any) (int64, bool) {
	if n, ok := value.(json.Number); ok {
		whole, err := strconv.ParseInt(n.String(), 10, 64)
		return whole, err == nil
	}
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), true
	}
	return 0, false
}
