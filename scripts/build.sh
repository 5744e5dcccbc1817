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
  awk -v terminal="$([ -t 1 ] && echo 1)" '
    /^\[[0-9]+\/[0-9]+\]/ {
      split(substr($1, 2), at, "/"); tenth = int(10 * at[1] / at[2])
      if (terminal) printf "\r[build] %s", $1
      else if (tenth > last) print "[build] " $1
      last = tenth; shown = 0; fflush(); next
    }
    /(warning|error):|^FAILED/ { shown = 12 }
    shown > 0 { if (terminal && shown == 12) print ""; print; shown-- }
    END { if (terminal) print "" }'
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
