package testbroker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// installation is a RabbitMQ that can be run: the machine's own, or one in a chroot.
type installation struct {
	root              string // "" or the chroot's folder
	server, ctl, epmd string // as seen from inside root
}

// ErrNoBroker means that no broker is installed. The error around it names the missing package.
var ErrNoBroker = errors.New("no broker")

// Installed returns nil if a broker can be started here, in the version MILLPOND_BROKER asks for.
func Installed() error {
	_, err := findInstallation(os.Getenv("MILLPOND_BROKER"))
	return err
}

// InstalledVersion returns the version of the RabbitMQ that [Private] starts, such as 4.0.5. The
// test is skipped if none is installed.
func InstalledVersion(tb testing.TB) string {
	tb.Helper()
	in := requireInstallation(tb)
	version, err := in.version()
	must(tb, "find the installed RabbitMQ", err)
	return version
}

// home returns the folder of RabbitMQ on this machine.
func (in installation) home() (string, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(in.root, in.server))
	return filepath.Dir(filepath.Dir(real)), err
}

func (in installation) version() (string, error) {
	home, err := in.home()
	if err != nil {
		return "", err
	}
	plugins := filepath.Join(home, "plugins", "rabbit-[0-9]*")
	found, err := filepath.Glob(plugins)
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("cannot tell the version of RabbitMQ in %s: %s matches %q, want one",
			home, plugins, found)
	}
	return strings.TrimPrefix(filepath.Base(found[0]), "rabbit-"), nil
}

// pluginsDir returns the folder of the plugins that a node starts with, as the node sees it.
// scripts is the folder of its scripts, or "" for the installation's.
func (in installation) pluginsDir(scripts string) string {
	if scripts != "" {
		return filepath.Join(filepath.Dir(scripts), "plugins")
	}
	home, err := in.home()
	if err != nil {
		return ""
	}
	return filepath.Join(home[len(in.root):], "plugins")
}

// packagedBin has the scripts of Debian's and RabbitMQ's packages. Unlike the wrappers in /usr/sbin
// they neither change user nor read the system's node name.
const packagedBin = "/usr/lib/rabbitmq/bin"

// findInstallation looks for the RabbitMQ that MILLPOND_BROKER names. If it is empty, that is the
// one installed on this machine.
func findInstallation(version string) (installation, error) {
	switch version {
	case "":
		return findInstalled()
	case "4.0", "4.3":
		return findChroot(version)
	default:
		return installation{}, fmt.Errorf("MILLPOND_BROKER is %q: want 4.0, 4.3 or nothing", version)
	}
}

func findInstalled() (installation, error) {
	in, err := lookIn("", packagedBin)
	if err == nil {
		return in, nil
	}
	server, lookErr := exec.LookPath("rabbitmq-server")
	if lookErr == nil {
		if real, linkErr := filepath.EvalSymlinks(server); linkErr == nil &&
			filepath.Base(real) != "rabbitmq-script-wrapper" {
			return lookIn("", filepath.Dir(real))
		}
	}
	return installation{},
		fmt.Errorf("%w: package rabbitmq-server is not installed (`make test` installs it)", ErrNoBroker)
}

func findChroot(version string) (installation, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return installation{}, err
	}
	root := filepath.Join(cache, "millpond", "brokers", version)
	in, err := lookIn(root, packagedBin)
	if err != nil {
		return installation{},
			fmt.Errorf("%w: RabbitMQ %s is not in %s (`make test BROKER=%s` builds it)", ErrNoBroker,
				version, root, version)
	}
	if os.Geteuid() != 0 {
		return installation{}, fmt.Errorf("%w: RabbitMQ %s runs in a chroot, which takes root",
			ErrNoBroker, version)
	}
	return in, nil
}

// lookIn expects rabbitmq-server and rabbitmqctl in bin, and Erlang's epmd in one of its usual
// places.
func lookIn(root, bin string) (installation, error) {
	in := installation{
		root: root, server: filepath.Join(bin, "rabbitmq-server"), ctl: filepath.Join(bin, "rabbitmqctl"),
	}
	for _, file := range []string{in.server, in.ctl} {
		// Links in a chroot may be absolute, so their targets cannot be checked from outside.
		if _, err := os.Lstat(filepath.Join(root, file)); err != nil {
			return installation{}, fmt.Errorf("%w: %w", ErrNoBroker, err)
		}
	}
	epmd, err := findInErlang(root, "epmd")
	if err != nil {
		return installation{}, err
	}
	in.epmd = epmd
	return in, nil
}

func findInErlang(root, program string) (string, error) {
	for _, pattern := range []string{
		"/usr/bin/", "/usr/lib/erlang/erts-*/bin/", "/usr/lib/erlang/bin/",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern, program))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return found[0][len(root):], nil
		}
	}
	if root == "" {
		if path, err := exec.LookPath(program); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: Erlang's %s is not installed", ErrNoBroker, program)
}

// enterChroot has its own mount namespace, so that /proc and /dev vanish with the process. Most
// containers do not allow that: without them all works except `rabbitmqctl status`.
const enterChroot = `
mount -t proc proc "$0/proc" 2>/dev/null || mount --bind /proc "$0/proc" 2>/dev/null
mount --bind /dev "$0/dev" 2>/dev/null
exec chroot "$0" "$@"`

const enterChrootPlain = `exec chroot "$0" "$@"`

// command runs args inside the installation's root, in the process that it starts.
func (in installation) command(args ...string) []string {
	if in.root == "" {
		return args
	}
	if mountsAllowed() {
		return append([]string{"unshare", "--mount", "--", "sh", "-c", enterChroot, in.root}, args...)
	}
	return append([]string{"sh", "-c", enterChrootPlain, in.root}, args...)
}

// config returns lines for the rabbitmq.conf of this installation. Without /proc RabbitMQ knows
// neither its own memory nor the machine's, and would never raise the memory alarm.
func (in installation) config() []string {
	if in.root == "" || mountsAllowed() {
		return nil
	}
	return []string{
		"vm_memory_calculation_strategy = allocated", "total_memory_available_override_value = 2GB",
	}
}

// mountsAllowed reports whether this process may have its own mount namespace.
var mountsAllowed = sync.OnceValue(func() bool {
	return exec.Command("unshare", "--mount", "--", "true").Run() == nil
})
