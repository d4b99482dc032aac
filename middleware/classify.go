package middleware

import "github.com/millpond-go/millpond/middleware/header"

// classes are the ways to class an error that bears no mark.
type classes struct {
	classifiers []Classifier
	later       []laterRule
	otherwise   header.Class
}

// of returns the class of err as a mark: the error's own mark, else that of the
// first rule of WithSnoozeFor, else what the first classifier with an opinion says,
// else the default. Code of the user
// that panics is told to fault and has no opinion.
func (c classes) of(err error, fault func(what string, value any)) mark {
	var found mark
	var ok bool
	if value := contain(func() { found, ok = markOf(err) }); value != nil {
		fault("error panicked while it was unwrapped", value)
	} else if ok {
		return found
	}

	for _, rule := range c.later {
		var matches bool
		if value := contain(func() { matches = rule.match(err) }); value != nil {
			fault("error panicked while it was compared", value)
		} else if matches {
			return mark{class: header.ClassRetryable, floor: rule.delay, later: true}
		}
	}
	for _, classifier := range c.classifiers {
		var class header.Class
		var ok bool
		value := contain(func() { class, ok = classifier.Classify(err) })
		switch {
		case value != nil:
			fault("classifier panicked", value)
		case ok && class.Known():
			return mark{class: class}
		case ok:
			fault("classifier returned an unknown class", class)
		}
	}
	return mark{class: c.otherwise}
}

// known reports whether class is one of those defined.
func known(class header.Class) bool {
	return class == header.ClassRetryable || class == header.ClassPermanent
}

// contain calls f and returns the value it panicked with, or nil.
func contain(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}
