package docs_test

// The Go of docs/getting-started.md behind its program, compiled: documents_test.go looks for
// each line here.

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/middleware"
)

func addMiddlewares(router *message.Router, retry *middleware.DelayedRetry) {
	router.AddMiddleware(
		wmiddleware.CorrelationID, // outside: middlewares that do not fail
		retry.Middleware,
		wmiddleware.Timeout(30*time.Second), // inside: middlewares whose errors count as failures
		wmiddleware.Recoverer,
	)
}

var _ = addMiddlewares
