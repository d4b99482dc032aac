package middleware_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func always(class header.Class) middleware.Classifier {
	return middleware.ClassifierFunc(func(error) (header.Class, bool) { return class, true })
}

func TestClassifiers(t *testing.T) {
	t.Parallel()
	errInvalid, errOther := errors.New("invalid"), errors.New("other")
	noOpinion := middleware.ClassifierFunc(func(error) (header.Class, bool) { return permanent, false })
	panics := middleware.ClassifierFunc(func(error) (header.Class, bool) { panic("classifier") })
	with := middleware.WithClassifier
	for name, test := range map[string]struct {
		err     error
		options []middleware.Option
		want    header.Class
	}{
		"by default retryable":      {errBoom, nil, retryable},
		"another default":           {errBoom, options{middleware.WithDefaultClass(permanent)}, permanent},
		"permanent by value":        {errInvalid, options{with(middleware.PermanentErrors(errOther, errInvalid))}, permanent},
		"permanent by value, in %w": {fmt.Errorf("a: %w", errInvalid), options{with(middleware.PermanentErrors(errInvalid))}, permanent},
		"not among the permanent":   {errBoom, options{with(middleware.PermanentErrors(errInvalid, nil))}, retryable},
		"none permanent":            {errBoom, options{with(middleware.PermanentErrors())}, retryable},
		"the first match wins":      {errBoom, options{with(always(permanent), always(retryable))}, permanent},
		"options keep their order":  {errBoom, options{with(always(permanent)), with(always(retryable))}, permanent},
		"no opinion: the next":      {errBoom, options{with(noOpinion, always(permanent))}, permanent},
		"no opinion: the default":   {errBoom, options{with(noOpinion)}, retryable},
		"unknown class: the next":   {errBoom, options{with(always("fatal"), always(permanent))}, permanent},
		"empty class: the default":  {errBoom, options{with(always(""))}, retryable},
		"panic: the next":           {errBoom, options{with(panics, always(permanent))}, permanent},
		"panic: the default":        {errBoom, options{with(panics)}, retryable},
		"a mark comes first":        {middleware.Retryable(errBoom), options{with(always(permanent))}, retryable},
		"a mark before the default": {middleware.Retryable(errBoom), options{middleware.WithDefaultClass(permanent)}, retryable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, handle(t, failsWith(test.err), test.options...).Notes.Class)
		})
	}
}

func TestPermanentErrorsKeepsItsOwnList(t *testing.T) {
	t.Parallel()
	errs := []error{errBoom}
	classifier := middleware.PermanentErrors(errs...)
	errs[0] = errors.New("another")
	if class, ok := classifier.Classify(errBoom); !ok || class != permanent {
		t.Errorf("got %q, %v", class, ok)
	}
}

func TestAClassifierThatMisbehavesIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		classifier middleware.Classifier
		message    string
		value      string
	}{
		"panic": {
			middleware.ClassifierFunc(func(error) (header.Class, bool) { panic("of mine") }),
			"Retry decision: classifier panicked", "of mine",
		},
		"unknown class": {always("fatal"), "Retry decision: classifier returned an unknown class", "fatal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			logger := watermill.NewCaptureLogger()
			handle(t, failsWith(errBoom), middleware.WithClassifier(test.classifier), middleware.WithLogger(logger))
			lines := logger.Captured()[watermill.ErrorLogLevel]
			if len(lines) != 1 || lines[0].Msg != test.message || lines[0].Fields["value"] != test.value {
				t.Errorf("logged %+v", lines)
			}
		})
	}
}
