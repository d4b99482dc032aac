package middleware_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func always(class header.Class) middleware.Classifier {
	return middleware.ClassifierFunc(func(error) (header.Class, bool) { return class, true })
}

func TestClassifiers(t *testing.T) {
	t.Parallel()
	noOpinion := middleware.ClassifierFunc(
		func(error) (header.Class, bool) { return permanent, false },
	)
	panics := middleware.ClassifierFunc(func(error) (header.Class, bool) { panic("classifier") })
	with := withClassifier
	for name, test := range map[string]struct {
		err     error
		options []middleware.Option
		want    header.Class
	}{
		"by default retryable": {errBoom, nil, retryable},
		"another default":      {errBoom, options{middleware.WithDefaultClass(permanent)}, permanent},
		"the first match wins": {
			errBoom, options{with(always(permanent), always(retryable))}, permanent,
		},
		"options keep their order": {
			errBoom, options{with(always(permanent)), with(always(retryable))}, permanent,
		},
		"no opinion: the next":    {errBoom, options{with(noOpinion, always(permanent))}, permanent},
		"no opinion: the default": {errBoom, options{with(noOpinion)}, retryable},
		"unknown class: the next": {
			errBoom, options{with(always("fatal"), always(permanent))}, permanent,
		},
		"empty class: the default": {errBoom, options{with(always(""))}, retryable},
		"panic: the next":          {errBoom, options{with(panics, always(permanent))}, permanent},
		"panic: the default":       {errBoom, options{with(panics)}, retryable},
		"a mark comes first": {
			middleware.Retryable(errBoom), options{with(always(permanent))}, retryable,
		},
		"a mark before the default": {
			middleware.Retryable(errBoom), options{middleware.WithDefaultClass(permanent)}, retryable,
		},
	} {
		assert.Equal(t, test.want, handle(t, failsWith(test.err), test.options...).State.Class, name)
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
		"unknown class": {
			always("fatal"), "Retry decision: classifier returned an unknown class", "fatal",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			logger := watermill.NewCaptureLogger()
			handle(t, failsWith(errBoom), withClassifier(test.classifier), withLogger(logger))
			lines := logger.Captured()[watermill.ErrorLogLevel]
			require.Len(t, lines, 1)
			assert.Equal(t, test.message, lines[0].Msg)
			assert.Equal(t, test.value, lines[0].Fields["value"])
		})
	}
}

// classOf is "" where the classifier has no opinion.
func classOf(t *testing.T, c middleware.Classifier, err error) header.Class {
	t.Helper()
	class, ok := c.Classify(err)
	assert.Equal(t, (class != ""), ok)
	return class
}

func TestMatchers(t *testing.T) {
	t.Parallel()
	errOther := errors.New("other")
	syntax := &json.SyntaxError{Offset: 7}
	isBoom := func(err error) bool { return err.Error() == "boom" }
	for name, test := range map[string]struct {
		classifier middleware.Classifier
		err        error
		want       header.Class
	}{
		"retryable by value": {retryableErrors(errOther, errBoom), errBoom, retryable},
		"retryable by value, joined": {
			retryableErrors(errBoom), errors.Join(errOther, errBoom), retryable,
		},
		"not among the retryable":    {retryableErrors(errOther, nil), errBoom, ""},
		"permanent by value":         {permanentErrors(errOther, errBoom), errBoom, permanent},
		"none permanent":             {permanentErrors(nil), errBoom, ""},
		"permanent by type":          {permanentIf(backoff.As[*json.SyntaxError]()), syntax, permanent},
		"permanent by predicate":     {permanentIf(isBoom), errBoom, permanent},
		"retryable by predicate":     {retryableIf(isBoom), errBoom, retryable},
		"not retryable by predicate": {retryableIf(isBoom), errOther, ""},
	} {
		assert.Equal(t, test.want, classOf(t, test.classifier, test.err), name)
	}
}

func TestMatchersKeepTheirOwnList(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(...error) middleware.Classifier{
		"permanent": permanentErrors, "retryable": retryableErrors,
	} {
		errs := []error{errBoom}
		classifier := make(errs...)
		errs[0] = errors.New("another")
		assert.NotEmpty(t, classOf(t, classifier, errBoom), name)
	}
}
