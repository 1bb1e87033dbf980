// Which rows of which sequence a CTA works on and which keys a query sees, for all attention
// kernels without a cache. The prelude says whether there is a window: kWindow.
#pragma once

namespace coda_device {

/// A tile of rows [first, first + kBlockRows) of the sequence [begin, end). Tiles never cross a
/// sequence's end. Sequence s owns the slots from begin / kBlockRows + s on: at least as many as it
/// has tiles, the rest stay empty. So the host need not know the lengths.
struct AttentionBlock {
  int begin, end, first;
};

/// An offset, kept inside the tokens whatever the list holds.
CODA_DEVICE int sequence_offset(const AttentionParams& p, int i) {
  const long long value = p.wide_offsets ? static_cast<const long long*>(p.cu_seqlens)[i]
                                         : static_cast<const int*>(p.cu_seqlens)[i];
  return static_cast<int>(value < 0 ? 0 : value > p.tokens ? p.tokens : value);
}

/// The tile at a slot; false if the slot is empty.
CODA_DEVICE bool find_block(const AttentionParams& p, int slot, AttentionBlock& block) {
  int low = 0, high = p.sequences - 1;  // the last sequence whose slots begin at or before this one
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (sequence_offset(p, middle) / kBlockRows + middle <= slot) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  block.begin = sequence_offset(p, low);
  block.end = sequence_offset(p, low + 1);
  block.first = block.begin + (slot - block.begin / kBlockRows - low) * kBlockRows;
  return block.first < block.end;
}

/// Does a query see the key `ahead` rows before it?
CODA_DEVICE bool is_seen(const AttentionParams& p, int ahead) {
  return ahead >= 0 && (!kWindow || ahead < p.window);
}
/// Is there, of 64 queries and 64 keys whose first is `ahead` rows before theirs, one that does not
/// see another?
CODA_DEVICE bool has_hidden(const AttentionParams& p, int ahead) {
  return ahead < kAttentionTile || (kWindow && ahead + kAttentionTile > p.window);
}
/// Of the keys that the queries of a block see: tiles before the first that holds one.
CODA_DEVICE int hidden_tiles(const AttentionParams& p, const AttentionBlock& block) {
  if (!kWindow) return 0;
  const int before = block.first - block.begin + 1 - p.window;
  return before > 0 ? before / kAttentionTile : 0;
}
/// Where the queries end that see a key of a block.
CODA_DEVICE int queries_end(const AttentionParams& p, const AttentionBlock& block) {
  if (!kWindow) return block.end;
  const int end = block.first + kBlockRows - 1 + p.window;
  return end < block.end ? end : block.end;
}

}  // namespace coda_device
