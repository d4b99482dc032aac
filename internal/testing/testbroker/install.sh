#!/bin/sh
# Installs what `make test` and `make demo` need and this machine lacks. Does nothing when nothing is missing.
#
#     sh install.sh [compiler] [broker] [prometheus] [postgres] [browser] [spin] [redis]
#
#     compiler   what `go test -race` links with
#     broker     RabbitMQ: rabbitmq-server of this Debian or Ubuntu, or with BROKER=4.0 or 4.3 that version in a chroot
#     prometheus what `make test-monitoring` checks rules with and scrapes the example with: prometheus and promtool
#     postgres   PostgreSQL's server, for `make test-postgres`, unless PGHOST names one: package postgresql
#     browser    Chromium for `make test-page`: package chromium; and axe-core of npm, in the user's cache
#     spin       what `make model` searches with: package spin
#     redis      a server that `make bench-peers` measures: package redis-server
#
# No service is started, and none that this script has installed stays enabled: tests start RabbitMQ and PostgreSQL themselves.
set -eu

here=$(dirname "$0")
BROKER=${BROKER:-}

say() { printf 'install: %s\n' "$*"; }
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

has_compiler() {
	cc=$(go env CC)
	has "${cc%% *}" || return 1
	# Without the C library's headers a compiler is not enough. $cc may carry arguments.
	# shellcheck disable=SC2086
	printf '#include <stdlib.h>\n#include <pthread.h>\n' | $cc -fsyntax-only -x c - >/dev/null 2>&1
}

has_broker() {
	{ [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || has rabbitmq-server; } && has epmd
}

has_prometheus() { has prometheus && has promtool; }

has_postgres() { [ -n "${PGHOST:-}" ] || { has pg_virtualenv && ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }; }

axe_version=4.14.1
axe_sha256=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
axe=${XDG_CACHE_HOME:-$HOME/.cache}/millpond/axe-core-$axe_version.min.js

has_axe() { printf '%s  %s\n' "$axe_sha256" "$axe" | sha256sum --check --status 2>/dev/null; }

has_chroot() {
	[ -e "${XDG_CACHE_HOME:-$HOME/.cache}/millpond/brokers/$BROKER/usr/lib/rabbitmq/bin/rabbitmq-server" ]
}

can_apt() { [ "$(id -u)" = 0 ] && has apt-get; }

# cannot ends the script where there is no apt-get to be run as root. $2 is what else would do.
cannot() {
	if [ "$(id -u)" != 0 ] && has apt-get; then
		fail "$1 is missing, and installing it takes root: run this as root${2:-}"
	fi
	fail "$1 is missing: install it with this system's package manager${2:-}"
}

packages=
compiler= broker= prometheus= postgres= chromium= axe_core= spin= redis=
for what in "$@"; do
	case $what in
	compiler) has_compiler || compiler=missing ;;
	broker)
		case $BROKER in
		'') has_broker || broker=missing ;;
		4.0 | 4.3) has_chroot || broker=missing ;;
		*) fail "BROKER is '$BROKER': want 4.0, 4.3 or nothing" ;;
		esac
		;;
	prometheus) has_prometheus || prometheus=missing ;;
	postgres) has_postgres || postgres=missing ;;
	browser)
		has chromium || chromium=missing
		has_axe || axe_core=missing
		;;
	spin) has spin || spin=missing ;;
	redis) has redis-server || redis=missing ;;
	*) fail "want compiler, broker, prometheus, postgres, browser, spin or redis, not '$what'" ;;
	esac
done

if [ -z "$compiler$broker$prometheus$postgres$chromium$axe_core$spin$redis" ]; then
	say "nothing is missing"
	exit 0
fi

if [ -n "$compiler" ]; then
	can_apt || cannot "a C compiler (for go test -race)"
	packages="$packages gcc libc6-dev"
fi
if [ -n "$prometheus" ]; then
	can_apt || cannot "Prometheus (package prometheus)"
	packages="$packages prometheus"
fi
if [ -n "$postgres" ]; then
	can_apt || cannot "PostgreSQL (package postgresql)"
	packages="$packages postgresql"
fi
if [ -n "$chromium" ]; then
	can_apt || cannot "Chromium (package chromium)"
	packages="$packages chromium fonts-dejavu-core"
fi
if [ -n "$axe_core" ] && ! has npm; then
	can_apt || cannot "npm, which fetches axe-core (package npm)"
	packages="$packages npm"
fi
if [ -n "$spin" ]; then
	can_apt || cannot "spin (package spin)"
	packages="$packages spin"
fi
if [ -n "$redis" ]; then
	can_apt || cannot "Redis (package redis-server)"
	packages="$packages redis-server"
fi
if [ -n "$broker" ] && ! can_apt; then
	if [ -n "${AMQP_URL:-}" ]; then
		say "no RabbitMQ can be installed here; going on with AMQP_URL alone"
		broker=
	else
		cannot "RabbitMQ${BROKER:+ $BROKER} (package rabbitmq-server${BROKER:+, in a chroot})" ", or set AMQP_URL"
	fi
fi
if [ -n "$broker" ]; then
	if [ -z "$BROKER" ]; then
		packages="$packages rabbitmq-server"
	else
		has debootstrap || packages="$packages debootstrap"
		# The chroot's packages are only as trustworthy as the keys they are checked with.
		[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages="$packages debian-archive-keyring"
	fi
fi

policy=/usr/sbin/policy-rc.d
saved=
ours=
log=
restore() {
	if [ -n "$ours" ]; then rm -f "$policy"; fi
	if [ -n "$saved" ]; then mv -f "$saved" "$policy"; fi
	if [ -n "$log" ]; then rm -f "$log"; fi
	saved='' ours='' log=''
}
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

# forbid_services makes Debian's maintainer scripts start nothing.
forbid_services() {
	code=0
	if [ -e "$policy" ]; then
		"$policy" rabbitmq-server start >/dev/null 2>&1 || code=$?
		[ "$code" != 101 ] || return 0
		saved=$policy.millpond-saved
		mv "$policy" "$saved"
	fi
	ours=yes
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
}

# settle undoes for a unit what its package did on installation: it is neither enabled nor running. Removing the link is
# what `systemctl disable` does, and works where there is no systemctl.
settle() {
	rm -f /etc/systemd/system/*.wants/"$1"
	if [ -d /run/systemd/system ] && has systemctl; then
		systemctl daemon-reload >/dev/null 2>&1 || true
		systemctl stop "$1" >/dev/null 2>&1 || true
	fi
}

apt() {
	DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq -y -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}

if [ -n "$packages" ]; then
	say "installing with apt-get:$packages"
	log=$(mktemp)
	new_erlang=yes new_broker=yes
	if has epmd; then new_erlang=; fi
	if [ -e /usr/lib/rabbitmq/bin/rabbitmq-server ]; then new_broker=; fi
	forbid_services
	# Package lists may be missing or too old: fetched when they turn out to be.
	# shellcheck disable=SC2086
	if ! apt install --no-install-recommends $packages; then
		say "fetching the package lists first"
		if ! apt update || ! apt install --no-install-recommends $packages; then
			tail -n 15 "$log" >&2
			fail "apt-get cannot install:$packages"
		fi
	fi
	if [ -n "$new_erlang" ] && has epmd; then
		settle epmd.socket
		settle epmd.service
	fi
	if [ -n "$prometheus" ]; then
		settle prometheus.service
		if has update-rc.d; then update-rc.d prometheus disable >/dev/null 2>&1 || true; fi
	fi
	if [ -n "$postgres" ]; then
		settle postgresql.service
		if has update-rc.d; then update-rc.d postgresql disable >/dev/null 2>&1 || true; fi
	fi
	if [ -n "$redis" ]; then
		settle redis-server.service
		if has update-rc.d; then update-rc.d redis-server disable >/dev/null 2>&1 || true; fi
	fi
	if [ -n "$new_broker" ] && [ -e /usr/lib/rabbitmq/bin/rabbitmq-server ]; then
		settle rabbitmq-server.service
		if has update-rc.d; then update-rc.d rabbitmq-server disable >/dev/null 2>&1 || true; fi
	fi
	restore
fi

if [ -n "$broker" ] && [ -n "$BROKER" ]; then
	sh "$here/chroot.sh" "$BROKER"
fi
if [ -n "$axe_core" ]; then
	say "fetching axe-core $axe_version from npm"
	folder=$(mktemp -d)
	trap 'restore; rm -rf "$folder"' EXIT
	npm pack --silent --pack-destination "$folder" "axe-core@$axe_version" >/dev/null </dev/null
	tar -xzf "$folder/axe-core-$axe_version.tgz" -C "$folder" package/axe.min.js
	mkdir -p "${axe%/*}"
	mv "$folder/package/axe.min.js" "$axe"
	has_axe || { rm -f "$axe"; fail "axe-core $axe_version of npm is not the known one"; }
fi
say "done"
