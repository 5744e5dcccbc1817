#!/usr/bin/env bash
# Builds the image of the Dockerfile by buildah, and runs it: `scripts/container.sh [option of buildah build...]`.
# No registry is needed: the base is Debian's bookworm with its Python 3.11, made by debootstrap under the name that the
# Dockerfile gives to Python's own image. It needs root, buildah and debootstrap (apt-get install buildah debootstrap).
set -euo pipefail
cd "$(dirname "$0")/.."

export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot # no overlay file system, and no container runtime
base=$(sed -n 's/^FROM \([^ ]*:[^ ]*\) AS .*/\1/p' Dockerfile | head -1)
say() { printf '[container] %s\n' "$*"; }

if ! buildah inspect --type image "docker.io/library/$base" >/dev/null 2>&1; then
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  say "making $base of Debian's packages"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-dev bookworm "$root" >/dev/null
  ln -s python3 "$root/usr/bin/python"
  rm "$root"/usr/lib/python3*/EXTERNALLY-MANAGED # that is Debian's; Python's image has none
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$root" / >/dev/null
  buildah config --cmd python3 "$container"
  buildah commit --quiet --rm "$container" "docker.io/library/$base" >/dev/null
fi
say "building the image"
buildah build --pull-never --tag amanda "$@" .
say "running it"
container=$(buildah from --pull-never amanda)
trap 'buildah rm "$container" >/dev/null' EXIT
buildah run "$container" -- python examples/python/demo.py
