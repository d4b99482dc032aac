package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testbench"
)

func TestMain(m *testing.M) {
	testbench.Main(m, func() error { return goleak.Find() })
}
