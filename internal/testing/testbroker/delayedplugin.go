package testbroker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// delayedPluginVariable names the folder that has a folder for each version: 3.10, 4.0.
const delayedPluginVariable = "MILLPOND_DELAYED_PLUGIN"

// delayedPlugin is RabbitMQ's delayed-message plugin, which no package has.
const delayedPlugin = "rabbitmq_delayed_message_exchange"

// DelayedPlugin returns an option for a node with RabbitMQ's delayed-message plugin. The test is
// skipped if MILLPOND_DELAYED_PLUGIN is not set, or names a folder without the plugin for the
// installed version.
func DelayedPlugin(tb testing.TB) NodeOption {
	tb.Helper()
	if os.Getenv(delayedPluginVariable) != "" {
		requireInstallation(tb)
	}
	option, err := WithDelayedPlugin()
	if err != nil {
		tb.Skip(err)
	}
	return option
}

// WithDelayedPlugin is DelayedPlugin for a program.
func WithDelayedPlugin() (NodeOption, error) {
	if os.Getenv(delayedPluginVariable) == "" {
		return nil, errors.New("needs " + delayedPluginVariable +
			", a folder with the delayed-message plugin in 3.10/ and 4.0/")
	}
	in, err := findInstallation(os.Getenv("MILLPOND_BROKER"))
	if err != nil {
		return nil, err
	}
	version, err := in.version()
	if err != nil {
		return nil, err
	}
	numbers := strings.SplitN(version, ".", 3)
	folder := filepath.Join(os.Getenv(delayedPluginVariable), strings.Join(numbers[:2], "."))
	if found, err := filepath.Glob(filepath.Join(folder, delayedPlugin+"-*")); err != nil ||
		len(found) == 0 { // 4.3 has no Mnesia, in which the plugin keeps its messages
		return nil, fmt.Errorf("needs a RabbitMQ whose delayed-message plugin is in %s", folder)
	}
	// It is copied beside the node's files, because a chroot sees no other folder.
	return func(s *settings) { s.plugins = folder }, nil
}
