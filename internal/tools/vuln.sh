#!/bin/sh
# Runs govulncheck. It fails where something is found. Where its database cannot be reached it
# says that nothing was checked, and does not fail.
set -u
go=$1 govulncheck=$2
shift 2
said=$("$go" run "$govulncheck" "$@" 2>&1)
code=$?
printf '%s\n' "$said"
case $said in *'fetching vulnerabilities: '*)
	echo 'vuln: NOTHING WAS CHECKED: https://vuln.go.dev, the database, cannot be reached from here' >&2
	exit 0
	;;
esac
exit $code
