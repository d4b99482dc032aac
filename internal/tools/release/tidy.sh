#!/bin/sh
# Tidies go.mod and go.sum of every module. The modules require each other by versions that
# are not published yet, so a module proxy made of the checkout stands in for them.
set -eu
cd "$(dirname "$0")/../../.."
proxy=$(mktemp -d)
trap 'rm -rf "$proxy"' EXIT
go run ./internal/tools/release -out "$proxy/proxy"
GOPROXY="file://$proxy/proxy,$(go env GOPROXY)"
export GOPROXY GOWORK=off GOFLAGS=-modcacherw GONOSUMDB=github.com/millpond-go/millpond
GOMODCACHE_KEPT=$(go env GOMODCACHE)
export GOMODCACHE="$proxy/cache" GOPROXY="file://$proxy/proxy,file://$GOMODCACHE_KEPT/cache/download,$(go env GOPROXY)"
for module in $(git ls-files --cached --others --exclude-standard | grep -E '(^|/)go\.mod$'); do
	dir=$(dirname "$module")
	echo "tidy $dir"
	go -C "$dir" mod tidy
	# The hash of a version that is not published changes with every commit.
	test ! -f "$dir/go.sum" || sed -i '/^github.com\/millpond-go\/millpond/d' "$dir/go.sum"
done
