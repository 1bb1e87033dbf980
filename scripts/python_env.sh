# Makes .venv with what tests/python needs. Sourced; `coda_python_env` does nothing when the
# environment already holds what tests/python/requirements.txt names.

coda_python_env() {
  local stamp=.venv/requirements.txt wanted=tests/python/requirements.txt log
  if cmp -s "$wanted" "$stamp" && .venv/bin/python -c 'import torch' 2> /dev/null; then return 0; fi
  echo "python: installing into .venv: $(grep -v '^#' "$wanted" | tr '\n' ' ')"
  python3 -m venv --clear .venv
  log=$(mktemp)
  # The CPU-only build of torch is far smaller; not every index carries it under this name.
  local torch
  torch=$(grep '^torch==' "$wanted")
  if ! { .venv/bin/python -m pip install "$torch+cpu" || .venv/bin/python -m pip install "$torch"; } \
      > "$log" 2>&1 || ! .venv/bin/python -m pip install -r "$wanted" >> "$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "python: pip could not install $wanted into .venv (its last lines are above)." >&2
    return 1
  fi
  rm -f "$log"
  cp "$wanted" "$stamp"
}

# Lets the tests compile CUDA kernels with the NVRTC that .venv holds, unless CODA_NVRTC names one.
coda_use_nvrtc() {
  local found
  found=$(echo "$PWD"/.venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*)
  if [ -z "${CODA_NVRTC:-}" ] && [ -e "${found%% *}" ]; then
    CODA_NVRTC=$(dirname "${found%% *}")
    export CODA_NVRTC
  fi
}
