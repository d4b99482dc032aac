package testbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Postgres is a PostgreSQL server on this machine, reachable from it only.
type Postgres struct {
	folder, data string
	port         int
	programs     postgresPrograms
	group        *group
	output       *os.File
	close        sync.Once
	closed       error
}

// postgresPrograms are programs that Debian keeps out of PATH.
type postgresPrograms struct{ initdb, server string }

// ErrNoPostgres means that no PostgreSQL is installed.
var ErrNoPostgres = errors.New("needs PostgreSQL, of the package postgresql: make test-postgres")

// PrivatePostgres starts a server for this test alone. It ends with the test. Without an
// installation the test is skipped and names the missing package, or fails if
// MILLPOND_REQUIRE_POSTGRES is set.
func PrivatePostgres(tb testing.TB) *Postgres {
	tb.Helper()
	p, err := StartPostgres(tb.Context())
	if errors.Is(err, ErrNoPostgres) && os.Getenv("MILLPOND_REQUIRE_POSTGRES") == "" {
		tb.Skip(err)
	}
	must(tb, "start PostgreSQL", err)
	endsWith(tb, "PostgreSQL server", p.Close)
	return p
}

// StartPostgres starts a server for a program, on a new folder and a free port. The context bounds
// the start, which takes at most 90 seconds. The server lives until Close, or until the program
// ends.
func StartPostgres(ctx context.Context) (*Postgres, error) {
	programs, err := findPostgres()
	if err != nil {
		return nil, err
	}
	return onFreePorts(ctx, startLimit, func(ctx context.Context) (*Postgres, error) {
		return launchPostgres(ctx, programs)
	})
}

func launchPostgres(ctx context.Context, programs postgresPrograms) (*Postgres, error) {
	folder, err := os.MkdirTemp("", "millpond-postgres-")
	if err != nil {
		return nil, err
	}
	p := &Postgres{folder: folder, data: filepath.Join(folder, "data"), programs: programs}
	if err := p.initialize(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if p.output, err = os.Create(filepath.Join(folder, "output")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if p.group, err = startGroup(folder, postgresEnv(), p.output,
		asNobody(p.arguments()...)...); err != nil {
		return nil, errors.Join(err, p.output.Close(), os.RemoveAll(folder))
	}
	if err := await(ctx, p.group.leader, "postgres", p.answers); err != nil {
		tail := p.tail()
		if strings.Contains(tail, "Address already in use") {
			err = fmt.Errorf("%w: %w", errPort, err)
		}
		return nil, errors.Join(fmt.Errorf("%w%s", err, tail), p.Close())
	}
	return p, nil
}

func findPostgres() (postgresPrograms, error) {
	// The newest first: by length before name, because 9 is older than 10.
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(found, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(b, a)
	})
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, filepath.Dir(path))
	}
	for _, dir := range found {
		p := postgresPrograms{
			initdb: filepath.Join(dir, "initdb"), server: filepath.Join(dir, "postgres"),
		}
		if executable(p.initdb) && executable(p.server) {
			return p, nil
		}
	}
	return postgresPrograms{}, ErrNoPostgres
}

func executable(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}

// postgresEnv keeps the caller's PG… variables away.
func postgresEnv() []string { return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"} }

// asNobody runs args as an unprivileged user if this process is root, because PostgreSQL refuses to
// run as root.
func asNobody(args ...string) []string {
	if os.Geteuid() != 0 {
		return args
	}
	return append([]string{
		"setpriv", "--reuid=" + unprivileged, "--regid=" + unprivileged, "--clear-groups", "--",
	}, args...)
}

// unprivileged is the number of an unprivileged user on every Linux.
const unprivileged = "65534"

func (p *Postgres) initialize(ctx context.Context) error {
	if os.Geteuid() == 0 {
		if err := os.Chown(p.folder, 65534, 65534); err != nil {
			return err
		}
	}
	args := asNobody(p.programs.initdb, "--pgdata="+p.data, "--username=millpond", "--auth=trust",
		"--encoding=UTF8", "--no-locale", "--no-sync")
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.Dir = postgresEnv(), "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := freePort(nil)
	p.port = port
	return err
}

func (p *Postgres) arguments() []string {
	settings := []string{
		"listen_addresses=127.0.0.1", fmt.Sprint("port=", p.port), "unix_socket_directories=" + p.folder,
		"max_connections=50", "shared_buffers=16MB", "fsync=off", "timezone=UTC",
	}
	args := []string{p.programs.server, "-D", p.data}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	return args
}

// answers returns nil once the server takes connections and has logged so.
func (p *Postgres) answers() error {
	if !strings.Contains(p.tail(), "ready to accept connections") {
		return errors.New("it has not logged that it is ready")
	}
	conn, err := net.DialTimeout("tcp4", p.Address(), time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (p *Postgres) tail() string {
	text, err := os.ReadFile(filepath.Join(p.folder, "output"))
	if err != nil {
		return ""
	}
	return "\n" + string(text[max(0, len(text)-2000):])
}

// Address returns 127.0.0.1 and the port.
func (p *Postgres) Address() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

// URL returns the address of the database postgres, with a user that has all permissions.
func (p *Postgres) URL() string {
	return "postgres://millpond@" + p.Address() + "/postgres?sslmode=disable"
}

// Close ends the server, as fast as possible without leaving shared memory, and removes its files.
// Further calls do nothing and return the same error.
func (p *Postgres) Close() error {
	p.close.Do(func() {
		// SIGINT is PostgreSQL's fast shutdown.
		if err := p.group.leader.signal(syscall.SIGINT); err == nil {
			select {
			case <-p.group.leader.done:
			case <-time.After(stopLimit):
			}
		}
		p.closed = errors.Join(p.group.end(), p.output.Close())
	})
	return p.closed
}
