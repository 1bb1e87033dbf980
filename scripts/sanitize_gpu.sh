#!/usr/bin/env bash
# Runs compute-sanitizer over every kind of kernel, at small shapes, on a machine with a GPU.
set -euo pipefail

usage() {
  cat <<'TXT'
usage: scripts/sanitize_gpu.sh [coda_cuda_tests] [tool...]
  coda_cuda_tests   the program with the GPU tests; default build/src/backend/cuda/coda_cuda_tests
                    (cmake --build build --target coda_cuda_tests)
  tool              memcheck, racecheck, synccheck or initcheck; default: all four, side by side
A first run without a tool compiles the kernels. Exits with 0 only if no tool reports anything.
TXT
}

case "${1:-}" in --help | -h) usage; exit 0 ;; esac
tests=${1:-$(dirname "${BASH_SOURCE[0]}")/../build/src/backend/cuda/coda_cuda_tests}
tools=("${@:2}")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck synccheck initcheck)
[ -x "$tests" ] || { echo "sanitize_gpu.sh: no program $tests." >&2; usage >&2; exit 2; }
command -v compute-sanitizer > /dev/null || {
  echo "sanitize_gpu.sh: compute-sanitizer (of the CUDA toolkit) is not on the PATH." >&2
  exit 2
}

# GEMMs in every configuration; generated epilogues, row and vector programs, finishing, the
# general and the plain kernel; embedding; AdamW and norms; attention; a captured graph.
filter='CudaGemm.SmallShapes*:CudaPlan.SmallBlocks:CudaPlan.RowProgram:CudaPlan.Embedding'
filter+=':CudaPlan.AdamW*:CudaPlan.Replays*:CudaAttention.Small*:CudaAttention.NoTokens'
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export CODA_TEST_GPU=1 CODA_CACHE_DIR=${CODA_CACHE_DIR:-$logs/cache}

"$tests" --gtest_brief=1 --gtest_filter="$filter"
declare -A pids
for tool in "${tools[@]}"; do
  compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" --gtest_brief=1 \
    --gtest_filter="$filter" > "$logs/$tool" 2>&1 &
  pids[$tool]=$!
done
failed=0
for tool in "${tools[@]}"; do
  status=0
  wait "${pids[$tool]}" || status=$?
  echo "== $tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$tool" || echo 'no summary')"
  if [ $status != 0 ]; then
    failed=1
    head -n 60 "$logs/$tool"
  fi
done
exit $failed
