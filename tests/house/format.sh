#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails if clang-format 14 would change a source file below ROOT.
#   format.sh ROOT CLANG_FORMAT      exit status 77 (skipped) without that version
set -euo pipefail
root=$1 tool=${2:-}
if ! [ -x "$tool" ] || ! "$tool" --version | grep -q 'version 14\.'; then
    echo "clang-format 14 is not here (the layout differs between versions)"
    exit 77
fi
cd "$root"
folders=()
for folder in base kernels collectives sim bench tests; do
    if [ -d "$folder" ]; then folders+=("$folder"); fi
done
mapfile -d '' files < <(find "${folders[@]}" -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print0)
echo "${#files[@]} files"
[ ${#files[@]} -gt 0 ]
"$tool" --style=file --dry-run -Werror "${files[@]}"
