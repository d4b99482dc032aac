package middleware_test

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// declined is the error of a payment provider.
type declined struct{ code string }

func (d declined) Error() string { return "payment declined: " + d.code }

// ByCode is a classifier of a user: the code of the provider says whether a retry can help.
type ByCode map[string]header.Class

// Classify has an opinion on errors of the provider alone.
func (c ByCode) Classify(err error) (class header.Class, ok bool) {
	var d declined
	if !errors.As(err, &d) {
		return "", false
	}
	class, ok = c[d.code]
	return class, ok
}

// The first classifier with an opinion decides. Without one the class is the default.
func ExampleWithClassifier() {
	var codes middleware.Classifier = ByCode{
		"card_stolen": header.ClassPermanent, "try_later": header.ClassRetryable,
	}
	for _, code := range []string{"card_stolen", "try_later", "new_code"} {
		fmt.Print(code, ": ")
		run(func(*message.Message) error { return fmt.Errorf("order 7: %w", declined{code}) },
			middleware.WithClassifier(codes, middleware.NetworkErrors()),
			middleware.WithDefaultClass(header.ClassPermanent),
			middleware.WithMaxAttempts(2),
		)
	}
	// Output:
	// card_stolen: dead-lettered (permanent) after 1 attempt
	// try_later: dead-lettered (exhausted) after 2 attempts, delays 1s
	// new_code: dead-lettered (permanent) after 1 attempt
}
