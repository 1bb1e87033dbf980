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

# Small tests: the mainloop in each kind of configuration; generated epilogues, row and vector
# programs, finishing, the plain kernel; embedding; attention; attention to a cache. And AdamW, norms,
# a captured graph.
filter='Cuda*.Small*:CudaPlan.AdamW*:CudaPlan.Replays*'
filter+=':-CudaGemm.SmallShapesThroughEveryConfiguration'
shards=4  # processes of a tool: they wait for the host most of the time
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export CODA_TEST_GPU=1 CODA_CACHE_DIR=${CODA_CACHE_DIR:-$logs/cache} GTEST_TOTAL_SHARDS=$shards

# Runs a command on every shard, its output in files NAME.SHARD; fails if one does.
on_shards() {
  local name=$1 pids=() failed=0
  shift
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_SHARD_INDEX=$shard "$@" > "$logs/$name.$shard" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}

run=("$tests" --gtest_brief=1 --gtest_filter="$filter")
on_shards compile "${run[@]}" || { cat "$logs"/compile.*; exit 1; }
declare -A tool_pids
for tool in "${tools[@]}"; do
  on_shards "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "${run[@]}" &
  tool_pids[$tool]=$!
done
failed=0
for tool in "${tools[@]}"; do
  status=0
  wait "${tool_pids[$tool]}" || status=$?
  grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$tool".* | sort | uniq -c | sed "s/^/$tool: /"
  if [ $status != 0 ]; then
    failed=1
    head -qn 60 "$logs/$tool".*
  fi
done
exit $failed
