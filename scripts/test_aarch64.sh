#!/usr/bin/env bash
# Builds coda.cpp for 64-bit ARM with Debian's cross compiler and runs test programs under QEMU.
# Slow: an emulated test takes 20 to 100 times as long.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  cat <<'TXT'
usage: scripts/test_aarch64.sh [test programs, default: base ops ir graph backend]
GTEST_FILTER selects tests. Everything is made in build-aarch64/: ARM packages are unpacked in root/
there, not installed. Installs g++-aarch64-linux-gnu and qemu-user-static with apt if missing.
TXT
  exit 0
fi
programs=("$@")
if [ $# -eq 0 ]; then programs=(base ops ir graph backend); fi

coda_setup build tests cross

# A package database of its own: nothing of the system's changes.
build=$PWD/build-aarch64
root=$build/root
if [ ! -d "$root" ]; then
  apt=$build/apt
  mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial
  touch "$apt/status"
  printf '%s;\n' "Dir::State \"$apt/state\"" "Dir::State::status \"$apt/status\"" \
    "Dir::Cache \"$apt/cache\"" 'APT::Architecture "arm64"' 'APT::Architectures { "arm64" }' \
    > "$apt/apt.conf"
  packages=$(coda_packages build; coda_packages tests)
  export APT_CONFIG=$apt/apt.conf
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends --download-only \
    $(tr ' ' '\n' <<< "$packages" | grep -E '^(lib|nlohmann).*-dev$' | grep -v benchmark)
  unset APT_CONFIG
  for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root.new"; done
  mv "$root.new" "$root"
fi

cmake -S . -B "$build" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_SYSROOT="$root" \
  -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY > /dev/null
cmake --build "$build" --parallel "$(nproc)" --target $(printf 'coda_%s_tests ' "${programs[@]}")
for program in "${programs[@]}"; do
  qemu-aarch64-static -L "$root" "$build/coda_${program}_tests"
done
