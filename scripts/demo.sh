#!/usr/bin/env bash
# From nothing to a language model: installs what is missing, builds `coda`, trains a small Llama on
# 4 MB of English, and shows its held-out loss beside a unigram model's, and a sample of its text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh

if [ $# -gt 0 ]; then
  echo "usage: scripts/demo.sh"
  echo "  Builds in build-demo/ and leaves the trained model in build-demo/run (a Hugging Face folder)."
  [ "$1" = --help ] || [ "$1" = -h ] || exit 2
  exit 0
fi

build_dir=build-demo run=build-demo/run
coda_setup build demo

echo "demo: building coda in $build_dir"
cmake -S . -B $build_dir -G Ninja -DCMAKE_BUILD_TYPE=Release -DCODA_BUILD_TESTS=OFF > /dev/null
cmake --build $build_dir --parallel "$(nproc)" --target coda
scripts/demo_text.sh $build_dir/text.txt

rm -rf $run
start=$SECONDS
$build_dir/coda train --data $build_dir/text.txt --vocab 2048 --d-model 256 --layers 4 --heads 4 \
  --kv-heads 2 --d-ff 704 --seq 256 --batch 8 --steps 300 --lr 1e-3 --threads "$(nproc)" --seed 1 \
  --out $run
echo "demo: trained in $((SECONDS - start)) s"

# The last number under a name in `coda`'s JSON, without needing anything that reads JSON.
number() { sed -n "s/.*\"$1\": *\([-+0-9.eE]*\).*/\1/p" "$2" | tail -n 1; }
$build_dir/coda eval --model $run --data $build_dir/text.txt --held-out --json > $build_dir/eval.json
loss=$(number eval_loss $build_dir/eval.json)
unigram=$(number unigram_loss $build_dir/eval.json)

echo "demo: a sample:"
$build_dir/coda generate --model $run --prompt "And God said" --tokens 120 --seed 1
echo
echo "demo: held-out loss $loss nats a token; a unigram model's: $unigram"
awk -v loss="$loss" -v unigram="$unigram" 'BEGIN {
  if (loss == "" || unigram == "" || !(unigram - loss >= 0.5)) {
    print "demo: expected a held-out loss at least 0.5 below the unigram model" "'"'"'s."
    exit 1
  }
  printf "demo: %.2f nats better. The model is in '$run'.\n", unigram - loss }'
