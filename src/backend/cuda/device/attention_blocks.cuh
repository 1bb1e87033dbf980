// Which rows of which sequence a CTA works on, and delta = dot(o, d_o), for all attention kernels.
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

}  // namespace coda_device
