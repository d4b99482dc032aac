// Package discover finds what millpond has in a virtual host.
package discover
