#!/usr/bin/env bash
# Makes the machine ready to build: system packages (on Debian, when we may), then .venv with the pinned requirements.
# `scripts/setup.sh docs`: ready for `make docs`, too.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
say() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { say "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11"; exit 1; }

have_header() { echo "#include <$1>" | g++ -x c++ -std=c++17 -fsyntax-only ${2:+-I "$2"} - 2>/dev/null; }

missing=()
command -v g++ >/dev/null || missing+=(g++)
command -v git >/dev/null || missing+=(git)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if command -v g++ >/dev/null; then
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  have_header Python.h "$include" || missing+=(python3-dev)
  have_header fmt/format.h || missing+=(libfmt-dev)
  have_header gtest/gtest.h || missing+=(libgtest-dev)
else
  missing+=(python3-dev libfmt-dev libgtest-dev)
fi

docs=${1:-}
[ -z "$docs" ] || command -v doxygen >/dev/null || missing+=(doxygen)

if [ ${#missing[@]} -gt 0 ]; then
  install="apt-get install -y --no-install-recommends ${missing[*]}"
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    say "installing ${missing[*]}"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install >/dev/null
  elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then
    say "installing ${missing[*]}"
    sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive $install >/dev/null
  else
    say "missing: ${missing[*]}. Run this, then try again:"
    echo "    sudo apt-get update && sudo $install"
    exit 1
  fi
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { say "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11"; exit 1; }

if [ ! -x .venv/bin/python ]; then
  say "creating .venv"
  "$python" -m venv .venv
fi
say "installing requirements.txt into .venv (torch is large: the first time takes minutes)"
.venv/bin/pip install --disable-pip-version-check --quiet --progress-bar on -r requirements.txt torch==2.13.0
cp requirements.txt .venv/requirements.txt # what is installed: `make` compares
if [ -n "$docs" ]; then
  say "installing docs/requirements.txt into .venv"
  .venv/bin/pip install --disable-pip-version-check --quiet -r docs/requirements.txt
  cp docs/requirements.txt .venv/requirements-docs.txt
fi
say "ready"
