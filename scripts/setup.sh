# Installs the packages that coda.cpp needs on Debian 12 or Ubuntu 24.04. Sourced by the other
# scripts: `coda_setup build tests` installs what those groups still miss, and does nothing (not even
# ask for root) when all of it is there. Run by itself, it installs the groups given as arguments.
#
# Groups: build (the library and the command), tests, demo (the text it trains on), clang, torch.

coda_packages() {
  case "$1" in
    build) echo g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev \
                libsentencepiece-dev libpcre2-dev libutf8proc-dev libsqlite3-dev libdnnl-dev \
                libhwy-dev ;;
    tests) echo ccache libgtest-dev libgmock-dev libbenchmark-dev ;;
    demo) echo bible-kjv ;;
    clang) echo clang ;;
    cross) echo g++-aarch64-linux-gnu qemu-user-static ;;
    torch) coda_python_works || echo python3 python3-venv ;;
    *) echo "setup: unknown group '$1'; expected build, tests, demo, clang, cross or torch." >&2; return 2 ;;
  esac
}

# A python3 that can make virtual environments; Debian keeps that part in a package of its own.
coda_python_works() { python3 -c 'import ensurepip, venv' > /dev/null 2>&1; }

coda_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}

coda_setup() {
  local group package packages missing=() as_root=()
  if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    echo "setup: no apt here, so nothing is installed; needed (Debian's names):" >&2
    for group in "$@"; do coda_packages "$group" >&2; done
    return 0
  fi
  for group in "$@"; do
    packages=$(coda_packages "$group") || return
    for package in $packages; do coda_installed "$package" || missing+=("$package"); done
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  echo "setup: installing with apt: ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo > /dev/null; then
      echo "setup: installing packages needs root, and there is no sudo. Run as root:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  # A failed update (one unreachable source of several) is only a warning: the install decides.
  local options=(-qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300) log
  log=$(mktemp)
  "${as_root[@]}" apt-get update "${options[@]}" < /dev/null ||
    echo "setup: apt-get update failed; trying with the package lists at hand." >&2
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y \
      --no-install-recommends "${options[@]}" "${missing[@]}" < /dev/null > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "setup: apt-get could not install: ${missing[*]} (its last lines are above)." >&2
    return 1
  fi
  rm -f "$log"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  if [ $# -eq 0 ]; then set -- build tests; fi
  coda_setup "$@"
fi
