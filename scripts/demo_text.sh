#!/usr/bin/env bash
# Writes about 4 MB of plain English text to the file given: the King James Bible (public domain), one
# verse a line, a blank line between chapters. It comes from the Debian package bible-kjv.
set -euo pipefail
out=${1:?usage: scripts/demo_text.sh OUT.txt}
command -v bible > /dev/null || {
  echo "demo_text: the program 'bible' is missing. Install the package bible-kjv." >&2; exit 1; }

mkdir -p "$(dirname "$out")"
# `bible -f` prints lines such as "Ge1:1 In the beginning ...": drop the reference.
bible -f gen1:1-rev22:21 < /dev/null | awk '
  { chapter = $1; sub(/:.*/, "", chapter)
    if (NR > 1 && chapter != previous) print ""
    previous = chapter
    sub(/^[^ ]+ +/, ""); print }' > "$out.part"
bytes=$(wc -c < "$out.part")
if [ "$bytes" -lt 1000000 ]; then
  echo "demo_text: expected at least 1 MB of text from 'bible', got $bytes bytes." >&2
  exit 1
fi
mv "$out.part" "$out"
