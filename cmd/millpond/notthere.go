package main

import (
	"errors"
	"fmt"
	"reflect"
)

// notThere is the error of a command that has found no such message. It is an errFound.
type notThere struct{ text string }

func (e *notThere) Error() string { return e.text }

func (e *notThere) Unwrap() error { return errFound }

// notFound says that there is no such message.
func notFound(format string, args ...any) error {
	return &notThere{fmt.Sprintf(format, args...)}
}

// joinType is the type of an error that errors.Join has made.
var joinType = reflect.TypeOf(errors.Join(errFound))

// parts returns the errors that errors.Join has put together.
func parts(err error) (list []error) {
	if err == nil {
		return nil
	}
	if reflect.TypeOf(err) != joinType {
		return []error{err}
	}
	for _, part := range err.(interface{ Unwrap() []error }).Unwrap() {
		list = append(list, parts(part)...)
	}
	return list
}
