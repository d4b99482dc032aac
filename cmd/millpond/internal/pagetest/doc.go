// Package pagetest has the tests of `millpond serve` in a real Chromium against a real RabbitMQ:
// `make test-page` installs both and runs them. It is a separate module, so that chromedp is in
// the dependencies of neither the tool nor the library.
package pagetest
