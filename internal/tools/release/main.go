// Command release writes every module of this repository, as it is checked out, into a
// folder that `go` reads as a module proxy:
//
//	go run ./internal/tools/release -out /tmp/proxy -version v0.1.0
//	export GOPROXY=file:///tmp/proxy,$(go env GOPROXY) GONOSUMDB=github.com/millpond-go/millpond
//	go install github.com/millpond-go/millpond/cmd/millpond@v0.1.0
//
// A test installs every module from such a folder before there is a release: inside the checkout
// go.work joins the modules, and outside only their go.mod files count.
package main

import (
	"archive/zip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// modulePath is the path of the module at the root of the repository.
const modulePath = "github.com/millpond-go/millpond"

func main() {
	root := flag.String("root", ".", "`folder` of the checkout")
	out := flag.String("out", "", "`folder` to write the proxy to")
	version := flag.String("version", "v0.1.0", "version of all modules")
	flag.Parse()
	if err := write(*root, *out, *version); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// write writes all modules of the checkout at root to the folder out.
func write(root, out, version string) error {
	if out == "" {
		return errors.New("no folder is named: use -out")
	}
	files, err := tracked(root)
	if err != nil {
		return err
	}
	dirs := moduleDirs(files)
	for _, dir := range dirs {
		if err := writeModule(root, out, version, dir, dirs, files); err != nil {
			return fmt.Errorf("module in folder %q: %w", dir, err)
		}
	}
	return nil
}

// tracked lists the files that a tag of this checkout would have.
func tracked(root string) ([]string, error) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of the checkout: %w", err)
	}
	return strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00"), nil
}

// moduleDirs returns the folders that have a go.mod, "." for the root.
func moduleDirs(files []string) (dirs []string) {
	for _, file := range files {
		if path.Base(file) == "go.mod" {
			dirs = append(dirs, path.Dir(file))
		}
	}
	return dirs
}

func writeModule(root, out, version, dir string, dirs, files []string) error {
	name := path.Join(modulePath, dir)
	folder := filepath.Join(out, filepath.FromSlash(name), "@v")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(root, dir, "go.mod"))
	if err != nil {
		return err
	}
	at := time.Unix(0, 0).UTC().Format(time.RFC3339)
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, version, at)
	for suffix, text := range map[string]string{".mod": string(mod), ".info": info} {
		if err := os.WriteFile(filepath.Join(folder, version+suffix), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "list"), []byte(version+"\n"), 0o644); err != nil {
		return err
	}
	archive, err := os.Create(filepath.Join(folder, version+".zip"))
	if err != nil {
		return err
	}
	packed := zip.NewWriter(archive)
	for _, file := range files {
		inModule, found := relative(file, dir, dirs)
		if !found {
			continue
		}
		if err := add(packed, filepath.Join(root, file), name+"@"+version+"/"+inModule); err != nil {
			return errors.Join(err, archive.Close())
		}
	}
	return errors.Join(packed.Close(), archive.Close())
}

// relative returns the name of a file in the module of dir. It is false for a file of
// another module.
func relative(file, dir string, dirs []string) (name string, found bool) {
	owner := path.Dir(file)
	for !slices.Contains(dirs, owner) && owner != "." {
		owner = path.Dir(owner)
	}
	if owner != dir {
		return "", false
	}
	return strings.TrimPrefix(file, strings.TrimPrefix(dir+"/", "./")), true
}

func add(packed *zip.Writer, file, name string) error {
	from, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil // deleted and not yet committed
	} else if err != nil {
		return err
	}
	defer from.Close()
	to, err := packed.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return err
}
