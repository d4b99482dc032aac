#!/bin/sh
# Tidies go.mod and go.sum of every module. The modules require each other by versions that
# are not published yet, so a repository made of the checkout stands in for them.
set -eu
cd "$(dirname "$0")/../../.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
versions=$(sh internal/tools/release/tag.sh "$made/millpond" v0.1.0)
# shellcheck disable=SC2086,SC2163
export $versions GOWORK=off GOFLAGS=-modcacherw
GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPROXY GOMODCACHE="$made/cache"
for module in $(git ls-files --cached --others --exclude-standard '*go.mod'); do
	dir=$(dirname "$module")
	echo "tidy $dir"
	go -C "$dir" mod tidy
	# The hash of a version that is not published changes with every commit.
	test ! -f "$dir/go.sum" || sed -i '/^github.com\/millpond-go\/millpond/d' "$dir/go.sum"
done
