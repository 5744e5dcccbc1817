#!/usr/bin/env bash
# `scripts/wheel.sh FOLDER [SOURCE [option of pip wheel...]]`: puts a wheel of SOURCE (this checkout, or an sdist) into FOLDER,
# with the tag of the oldest manylinux that it runs on. PyTorch's libraries stay outside: they are those of the installed torch.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-.venv/bin/python}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

"$python" -m pip wheel --quiet --no-build-isolation --no-deps -w "$built" "${2:-.}" "${@:3}"
# Nothing is copied into the wheel, so nothing is to be patched.
if ! "$python" -m auditwheel repair --patcher none --exclude 'libtorch*.so' --exclude libc10.so -w "$folder" "$built"/*.whl \
  >"$built/log" 2>&1; then
  cat "$built/log" >&2
  exit 1
fi
sed -n 's/^.*Fixed-up wheel written to /[wheel] /p' "$built/log"
