#!/usr/bin/env bash
# `compile_same_names.sh COMPILER OPTION... -c SOURCE`: a compiler launcher. The names of files that the compiler sees are the
# same in each folder of this machine and on others, as if -ffile-prefix-map held for all of its work. g++ 12 computes
# the checksums by which it finds the profile of a function from names that this option does not change. So the names
# are changed in the preprocessed source.
set -euo pipefail

compiler=$1 dependencies=() options=() rules=
shift
while (($#)); do
  case $1 in
    -MD | -MMD) dependencies+=("$1") ;;
    -MF | -MT | -MQ)
      dependencies+=("$1" "$2")
      shift
      ;;
    -o)
      object=$2
      shift
      ;;
    -c)
      source=$2
      shift
      ;;
    -ffile-prefix-map=*)
      map=${1#*=}
      rules="s|^\\(# [0-9]* \"\\)${map%%=*}|\\1${map#*=}|;t;$rules" # of several that fit, the last one holds
      options+=("$1")
      ;;
    *) options+=("$1") ;;
  esac
  shift
done
"$compiler" "${options[@]}" "${dependencies[@]}" -E "$source" | sed "$rules" |
  "$compiler" "${options[@]}" -x c++-cpp-output -c -o "$object" -
