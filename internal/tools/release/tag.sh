#!/bin/sh
# Makes a repository of this checkout, as it is, that has a version of every module, as after a release:
#
#     export $(sh internal/tools/release/tag.sh FOLDER v0.1.0)
#     go install github.com/millpond-go/millpond/cmd/millpond@v0.1.0
#
# It prints the environment in which `go` finds these versions in FOLDER, which must be absolute. Inside the checkout
# go.work joins the modules, and outside only their go.mod files count.
set -eu
cd "$(dirname "$0")/../../.."
export GIT_DIR="$1" GIT_WORK_TREE="$PWD"
git init -q
git add -A
commit=$(git -c user.name=release -c user.email=release@localhost commit-tree -m "$2" "$(git write-tree)")
for module in $(git ls-files '*go.mod'); do
	git tag "${module%go.mod}$2" "$commit"
done
printf '%s\n' GOPRIVATE=github.com/millpond-go GIT_CONFIG_COUNT=1 "GIT_CONFIG_KEY_0=url.file://$1.insteadOf" \
	GIT_CONFIG_VALUE_0=https://github.com/millpond-go/millpond
