package testbroker

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// gathered is the folder with the modules of many applications. Erlang looks through the last name
// first.
const gathered = "zz-gathered"

// shape counts the changes of what buildHome builds. Homes of an earlier shape are not used.
const shape = "2"

// slim returns the scripts' folder of a RabbitMQ home that starts with less processor time. Its
// home is a folder of links in the user's cache, or in the chroot, made once for an installation.
// An installation of another shape, or without such a folder, is used without it: "".
//
//   - Erlang looks for each module in every folder of its path, and each look is a system call on
//     another thread. So the plugins are left out, and the modules of Erlang and of RabbitMQ's
//     libraries are in one folder.
//   - RabbitMQ loads every module that an application lists, to read its attributes. So some
//     applications of Erlang list none there, and their modules load when they are called. The same
//     goes for the libraries of RabbitMQ 3.10.
//   - To make two thousand links for each node takes an eighth of the time of its start.
func (in installation) slim() string {
	real, err := filepath.EvalSymlinks(filepath.Join(in.root, in.server))
	if err != nil || !strings.HasPrefix(real, in.root) {
		return ""
	}
	from := filepath.Dir(filepath.Dir(real))
	home, err := in.homeOf(from)
	if err != nil {
		return ""
	}
	if _, err := os.Stat(home); err != nil {
		if err := in.makeHome(home, from); err != nil {
			return ""
		}
	}
	return filepath.Join(home[len(in.root):], "sbin")
}

// homeOf names the slim home of a RabbitMQ folder. An upgrade of RabbitMQ or Erlang changes it.
func (in installation) homeOf(from string) (string, error) {
	homes := filepath.Join(in.root, "var", "cache")
	if in.root == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		homes = cache
	}
	key := shape + from
	for _, folder := range []string{filepath.Join(from, "plugins"), filepath.Join(in.root, erlang)} {
		info, err := os.Stat(folder)
		if err != nil {
			return "", err
		}
		key += info.ModTime().String()
	}
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(homes, "millpond", "homes", fmt.Sprintf("%x", sum[:8])), nil
}

// makeHome builds the home beside its place, because another process may do the same.
func (in installation) makeHome(home, from string) error {
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		return err
	}
	made, err := os.MkdirTemp(filepath.Dir(home), "new-")
	if err != nil {
		return err
	}
	err = in.buildHome(made, from)
	if err == nil {
		err = os.Rename(made, home)
	}
	if err != nil {
		_ = os.RemoveAll(made)
	}
	if errors.Is(err, os.ErrExist) { // the other process was faster
		return nil
	}
	return err
}

// erlang has the folders of Erlang's applications.
const erlang = "/usr/lib/erlang/lib"

func (in installation) buildHome(home, from string) error {
	all := filepath.Join(home, "plugins", gathered, "ebin")
	for _, folder := range []string{filepath.Join(home, "sbin"), all} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	if err := in.linkFiles(filepath.Join(home, "sbin"), filepath.Join(from, "sbin", "*")); err != nil {
		return err
	}
	khepri, errKhepri := filepath.Glob(filepath.Join(from, "plugins", "khepri-*"))
	ours, errOurs := filepath.Glob(filepath.Join(from, "plugins", "*-*"))
	erlangs, err := filepath.Glob(filepath.Join(in.root, erlang, "*"))
	err = errors.Join(err, errKhepri, errOurs)
	for _, application := range ours {
		switch {
		case isPlugin(filepath.Base(application)):
		case needsItsFolder(application):
			err = errors.Join(err, in.linkFiles(filepath.Join(home, "plugins"), application))
		case len(khepri) > 0:
			err = errors.Join(err, in.linkFiles(all, filepath.Join(application, "ebin", "*")))
		default:
			err = errors.Join(err, in.linkFiles(all, filepath.Join(application, "ebin", "*.beam")),
				unlist(all, application))
		}
	}
	for _, application := range erlangs {
		err = errors.Join(err, in.linkFiles(all, filepath.Join(application, "ebin", "*.beam")))
		if name := filepath.Base(application); unlisted.MatchString(name) ||
			// Khepri looks through the compiler and the libraries. RabbitMQ 4 loads none of them early.
			len(khepri) == 0 && strings.HasPrefix(name, "compiler-") {
			err = errors.Join(err, unlist(all, application))
		}
	}
	if found, _ := filepath.Glob(filepath.Join(home, "plugins", "rabbit-*")); len(found) != 1 {
		err = errors.Join(err, errors.New("not the usual layout"))
	}
	return err
}

// unlisted matches the name of an application of Erlang that RabbitMQ or its database does not look
// through: such an application has no modules that RabbitMQ must know at its start.
var unlisted = regexp.MustCompile(
	`^(asn1|crypto|eldap|inets|os_mon|public_key|runtime_tools|ssl|syntax_tools|tools|xmerl)-`)

// moduleList is the list of modules in the file of an application.
var moduleList = regexp.MustCompile(`\{\s*modules\s*,\s*\[[^\]]*\]\s*\}`)

// unlist copies an application of Erlang without its list of modules.
func unlist(all, application string) error {
	files, err := filepath.Glob(filepath.Join(application, "ebin", "*.app"))
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		content = moduleList.ReplaceAll(content, []byte("{modules, []}"))
		err = os.WriteFile(filepath.Join(all, filepath.Base(file)), content, 0o644)
		if err != nil {
			return err
		}
	}
	return nil
}

// linkFiles puts links to the files of a pattern into a folder, with their paths inside the chroot.
func (in installation) linkFiles(folder, pattern string) error {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, file := range found {
		if err := os.Symlink(file[len(in.root):],
			filepath.Join(folder, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

func isPlugin(name string) bool {
	return strings.HasPrefix(name, "rabbitmq_") && !strings.HasPrefix(name, "rabbitmq_prelaunch-")
}

// needsItsFolder reports whether an application reads files beside its modules, or looks for its
// own folder, like RabbitMQ.
func needsItsFolder(application string) bool {
	if strings.HasPrefix(filepath.Base(application), "rabbit") {
		return true
	}
	_, err := os.Stat(filepath.Join(application, "priv"))
	return err == nil
}
