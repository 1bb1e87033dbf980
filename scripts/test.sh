#!/usr/bin/env bash
# Installs what is missing, builds coda.cpp and runs its tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh

usage() {
  cat <<'TXT'
usage: scripts/test.sh [options]
  --torch           also compare with PyTorch and transformers (tests/python), in .venv, and compile
                    every CUDA kernel with NVRTC from there
  --gpu             also run the tests that need a GPU (they fail where there is none)
  --sanitize        build with AddressSanitizer and UndefinedBehaviorSanitizer, in build-sanitize/
  --filter REGEX    only C++ test programs whose name matches (ctest -R); and, with --torch, only
                    Python tests whose name holds it (pytest -k)
  --help            this text
The C++ tests are built in build/. Exits with 0 only if every test that ran passed.
TXT
}

torch=0 sanitize=0 filter='' build_dir=build configure=()
while [ $# -gt 0 ]; do
  case "$1" in
    --torch) torch=1 ;;
    --gpu) export CODA_TEST_GPU=1 ;;
    --sanitize) sanitize=1 ;;
    --filter)
      [ $# -ge 2 ] || { echo "test.sh: --filter: expected a REGEX after it." >&2; exit 2; }
      filter=$2; shift ;;
    --help | -h) usage; exit 0 ;;
    *) echo "test.sh: unknown option '$1'." >&2; usage >&2; exit 2 ;;
  esac
  shift
done
if [ $sanitize = 1 ]; then build_dir=build-sanitize configure=(-DCODA_SANITIZE=ON); fi

groups=(build tests)
if [ $torch = 1 ]; then groups+=(torch); fi
coda_setup "${groups[@]}"

if [ $torch = 1 ]; then
  source scripts/python_env.sh
  coda_python_env
  coda_use_nvrtc
fi

cmake -S . -B "$build_dir" -G Ninja "${configure[@]}" > /dev/null
cmake --build "$build_dir" --parallel "$(nproc)"

failed=0
select=()
if [ -n "$filter" ]; then select=(-R "$filter"); fi
ctest --test-dir "$build_dir" --output-on-failure --parallel "$(nproc)" "${select[@]}" || failed=1

if [ $torch = 1 ]; then
  select=()
  if [ -n "$filter" ]; then select=(-k "$filter"); fi
  status=0
  CODA_BINARY=${CODA_BINARY:-$PWD/$build_dir/coda} .venv/bin/python -m pytest -q -p no:cacheprovider \
    tests/python "${select[@]}" || status=$?
  # 5: no test selected, which a filter meant for C++ tests does on purpose.
  if [ $status != 0 ] && ! { [ $status = 5 ] && [ -n "$filter" ]; }; then failed=1; fi
fi
exit $failed
