#!/usr/bin/env bash
# `scripts/wheel.sh FOLDER [SOURCE [option of pip wheel...]]`: puts a wheel of SOURCE (this checkout, or an sdist) into FOLDER,
# with the tag of the oldest manylinux that it runs on. PyTorch's libraries stay outside: they are those of the installed torch.
# The wheel holds a build for the torch of this environment (PYTHON names its Python); scripts/merge_wheels.py makes one of several.
# It is the same file in each folder in which a commit is built; scripts/wheels makes the wheels of a release.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)} # else 1980

# CMake remembers the torch that it found.
torch=$("$python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || echo none)
options=("${@:3}")
[[ " ${options[*]} " == *build-dir=* ]] || options+=("--config-settings=build-dir=build/wheel/{cache_tag}-torch-$torch")
# The linker leaves room for the path of the build folder, and computes the build id with it. The folder of `make` stays as it is.
[[ " ${options[*]} " == *build-dir=*/build/release* ]] || options+=(
  "--config-settings=cmake.define.CMAKE_BUILD_WITH_INSTALL_RPATH=ON"
  "--config-settings=cmake.define.CMAKE_SHARED_LINKER_FLAGS=-Wl,--build-id=none"
  "--config-settings=cmake.define.CMAKE_MODULE_LINKER_FLAGS=-Wl,--build-id=none"
)

"$python" -m pip wheel --quiet --no-build-isolation --no-deps -w "$built" "${2:-.}" "${options[@]}"
# Nothing is copied into the wheel, so nothing is to be patched.
if ! "$python" -m auditwheel repair --patcher none --exclude 'libtorch*.so' --exclude libc10.so -w "$built/repaired" "$built"/*.whl \
  >"$built/log" 2>&1; then
  cat "$built/log" >&2
  exit 1
fi
"$python" scripts/merge_wheels.py "$1" "$built"/repaired/*.whl
