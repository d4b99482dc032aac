package testbroker

import (
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
	if os.Getenv(delayedPluginVariable) == "" {
		tb.Skip("needs " + delayedPluginVariable +
			", a folder with the delayed-message plugin in 3.10/ and 4.0/")
	}
	requireInstallation(tb)
	// 4.3 has no Mnesia, in which the plugin keeps its messages.
	if os.Getenv("MILLPOND_BROKER") == "4.3" {
		tb.Skip("needs RabbitMQ before 4.3: make test BROKER=4.0")
	}
	folder, err := pluginFolder(InstalledVersion(tb))
	if err != nil {
		tb.Skip(err)
	}
	return withPlugin(folder)
}

// WithDelayedPlugin is DelayedPlugin for a program.
func WithDelayedPlugin() (NodeOption, error) {
	if os.Getenv(delayedPluginVariable) == "" {
		return nil, fmt.Errorf("%s is not set: let it name a folder with RabbitMQ's delayed-message "+
			"plugin in 3.10/ and 4.0/", delayedPluginVariable)
	}
	in, err := findInstallation(os.Getenv("MILLPOND_BROKER"))
	if err != nil {
		return nil, err
	}
	version, err := in.version()
	if err != nil {
		return nil, err
	}
	folder, err := pluginFolder(version)
	if err != nil {
		return nil, err
	}
	return withPlugin(folder), nil
}

// pluginFolder returns the folder of the plugin for a version such as 4.0.5.
func pluginFolder(version string) (string, error) {
	minor := version
	if numbers := strings.SplitN(version, ".", 3); len(numbers) == 3 {
		minor = numbers[0] + "." + numbers[1]
	}
	folder := filepath.Join(os.Getenv(delayedPluginVariable), minor)
	found, err := filepath.Glob(filepath.Join(folder, delayedPlugin+"-*"))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s has no delayed-message plugin for RabbitMQ %s", folder, version)
	}
	return folder, err
}

// withPlugin copies the plugin beside the node's files, because a chroot sees no other folder.
func withPlugin(folder string) NodeOption {
	return func(s *settings) { s.plugins = folder }
}
