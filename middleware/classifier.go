package middleware

import "github.com/millpond-go/millpond/middleware/header"

// Classifier says what class an error has. It is called from many goroutines at
// once. It is asked about the handler's error as it is, so it should use
// errors.Is and errors.As. One that panics is logged and counts as no match.
type Classifier interface {
	// Classify returns the class of err, or false if it has no opinion. Any
	// other class than ClassRetryable and ClassPermanent counts as no opinion.
	Classify(err error) (class header.Class, ok bool)
}

// ClassifierFunc is a function that is a Classifier.
type ClassifierFunc func(err error) (class header.Class, ok bool)

// Classify calls f.
func (f ClassifierFunc) Classify(err error) (header.Class, bool) { return f(err) }
