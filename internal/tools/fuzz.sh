#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME (default 1m) each, and stops at the first finding, which go test leaves
# under testdata/fuzz. No broker is used.
#
#     fuzz.sh [pattern of targets, default all]
set -eu
GO=${GO:-go}
FUZZTIME=${FUZZTIME:-1m}
pattern=${1:-^Fuzz}
export MILLPOND_NO_BROKER=1

count=0
for folder in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do
	for target in $($GO test -list "$pattern" "$folder" | grep '^Fuzz' || true); do
		count=$((count + 1))
		echo "== $folder $target, $FUZZTIME"
		$GO test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$folder" || {
			echo "== $folder $target has found something; the case is in $folder/testdata/fuzz/$target" >&2
			exit 1
		}
	done
done
if [ "$count" -eq 0 ]; then
	echo "no fuzz target matches $pattern" >&2
	exit 1
fi
echo "== $count targets, nothing found"
