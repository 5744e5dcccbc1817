#!/usr/bin/env bash
# Configures and builds the release preset with one line of progress, and stages the package as a wheel would hold it.
# Arguments go to CMake's configure step. The tools' output is in build/build.log; warnings and errors are shown, too.
set -euo pipefail
cd "$(dirname "$0")/.."

log=build/build.log
stage=$PWD/build/stage
mkdir -p build
say() { printf '[build] %s\n' "$*"; }

# Shows how far ninja is, and every diagnostic of the compiler. On a terminal one line is rewritten; elsewhere there is a
# line for every tenth.
progress() {
  local line tenth last=0 shown=0
  while IFS= read -r line; do # awk would wait for a whole block of input
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2])) shown=0
      if [ -t 1 ]; then
        printf '\r[build] %s' "${BASH_REMATCH[0]}"
      elif ((tenth > last)); then
        say "${BASH_REMATCH[0]}"
      fi
      last=$tenth
      continue
    fi
    if [[ $line =~ (warning|error):|^FAILED ]]; then
      shown=12
      if [ -t 1 ]; then echo; fi
    fi
    if ((shown > 0)); then
      printf '%s\n' "$line"
      shown=$((shown - 1))
    fi
  done
  if [ -t 1 ]; then echo; fi
}

if ! cmake --preset release "$@" >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
say "compiling; the first time takes a few minutes (log: $log)"
if ! cmake --build --preset release -j "${JOBS:-2}" 2>&1 | tee -a "$log" | progress; then
  say "failed; the whole log is in $log"
  exit 1
fi
cmake --install build/release --prefix "$stage" >>"$log"
# .venv imports the package from there.
echo "$stage" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/amanda-stage.pth"
say "done in $SECONDS s"
