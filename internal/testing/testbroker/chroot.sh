#!/bin/sh
# Builds a RabbitMQ in a chroot: 4.0 from Debian trixie, 4.3 from Debian sid. Needs root, debootstrap, and an apt that
# knows a Debian mirror (the one this machine uses; MILLPOND_DEBIAN_MIRROR overrides it).
#
#     sh chroot.sh 4.0|4.3
#
# The chroot ends up in the user's cache, complete or not at all. Nothing in it is ever started here.
set -eu

say() { printf 'chroot: %s\n' "$*"; }
fail() { printf 'chroot: %s\n' "$*" >&2; exit 1; }

version=${1:-}
case $version in
4.0) suite=trixie ;;
4.3) suite=sid ;;
*) fail "want 4.0 or 4.3, not '$version'" ;;
esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/millpond/brokers
target=$cache/$version

# The package's version is what the suite had that day: sid moves on.
found() { sed -n '/^Package: rabbitmq-server$/,/^$/s/^Version: //p' "$1/var/lib/dpkg/status"; }

if [ -e "$target/usr/lib/rabbitmq/bin/rabbitmq-server" ]; then
	say "RabbitMQ $version is there: package $(found "$target") from $suite, in $target"
	exit 0
fi

[ "$(id -u)" = 0 ] || fail "RabbitMQ $version is built and run in a chroot: that takes root"
command -v debootstrap >/dev/null || fail "package debootstrap is missing"

# mirror prints the archive this machine's apt takes its own release from.
mirror() {
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$3 == "main" && $2 !~ /-/ && $1 !~ /security/ { print $1; exit }'
}
url=${MILLPOND_DEBIAN_MIRROR:-$(mirror)}
[ -n "$url" ] || fail "apt knows no Debian mirror here; name one in MILLPOND_DEBIAN_MIRROR"

# debootstrap downloads with wget, which does not know apt's proxy.
proxy=
eval "$(apt-config shell proxy Acquire::http::Proxy)"
if [ -n "$proxy" ] && [ -z "${http_proxy:-}" ]; then export http_proxy="$proxy"; fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/.building-$version-XXXXXX")
log=$work.log
trap 'rm -rf "$work" "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
chmod 755 "$work"

say "building RabbitMQ $version from Debian $suite in $target: a few hundred megabytes, some minutes, once"
# In a mount namespace of its own, whatever debootstrap mounts is gone when it ends, however it ends.
own_mounts=
if unshare --mount -- true 2>/dev/null; then own_mounts='unshare --mount --'; fi
if ! $own_mounts debootstrap --force-check-gpg --variant=minbase --include=rabbitmq-server "$suite" "$work" "$url" >"$log" 2>&1; then
	tail -n 15 "$log" >&2
	fail "debootstrap of $suite failed"
fi

rm -rf "$work"/var/cache/apt/archives/*.deb "$work"/var/lib/apt/lists/*
printf '127.0.0.1 localhost\n' >"$work/etc/hosts"
chmod 1777 "$work/tmp"
[ -e "$work/usr/lib/rabbitmq/bin/rabbitmq-server" ] || fail "the package from $suite has no usr/lib/rabbitmq/bin/rabbitmq-server"

# Somebody else may have been faster; his is as good.
if ! mv -T "$work" "$target" 2>/dev/null; then
	[ -e "$target/usr/lib/rabbitmq/bin/rabbitmq-server" ] || fail "cannot move $work to $target"
fi
say "RabbitMQ $version is ready: package $(found "$target") from $suite"
