package pagetest

import (
	"flag"
	"os"
	"testing"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// update writes the pictures of the documents.
var update = flag.Bool("update", false, "write the pictures of docs")

// pictures is the folder of all screenshots. Default: none are kept.
var pictures = os.Getenv("MILLPOND_PICTURES")

// long runs the heavy tests, too.
var long = os.Getenv("MILLPOND_LONG") != ""

func TestMain(m *testing.M) { testbroker.Main(m, removeTool) }
