// Who computes what, in which order. A worker is a cluster. Each runs
//   1. whole tiles. Teams of kTeam workers in one GPC take kTeam neighbouring tiles, which share rows
//      of A (or of B) while they are on the way from L2; workers left over take single tiles;
//   2. its share of the split tiles (kSplitTail): the tiles that would fill only part of a last wave
//      are cut along k into equal runs of k-blocks. They come last: done first, handing over would
//      hide, but teams would start out of step and share less.
// Everything follows from ids claimed at the start, so results do not depend on timing.
#pragma once

namespace coda_device {

/// A run of k-blocks of one tile. Who has the first of a split tile owns it.
struct Segment {
  int tile;
  int k_begin, k_end;   ///< k-blocks; the whole tile if 0 .. k_blocks
  int last_helper;      ///< workers up to this one, after the owner, hand over the rest; or -1
};

/// Where a segment's tile lies, for this CTA. Element coordinates.
struct Tile {
  int a_row;      ///< row of A (over all blocks)
  int b_row;      ///< row of B inside its block (of each part of it)
  int b_block;    ///< block of operand B
  int c_block;    ///< block of the output
  int c_row;      ///< row and column inside that block
  int c_column;
  int column;     ///< column over all blocks: index into a row vector
};

/// What a cluster claims at its start.
struct Claim {
  int ticket;   ///< order of arrival: its share of the split tiles
  int worker;   ///< its place in a team: its whole tiles
};

/// A claim on its way: atomics asked for, answers not yet looked at.
struct PendingClaim {
  int ticket;
  int group;
  int place;
};

/// Call from one thread of the cluster, then complete_claim; what is done between hides the way to
/// L2 and back, which every kernel would else begin with. Every id is claimed exactly once wherever
/// the hardware placed the clusters: a GPC group that is full sends us on to the next, and sizes add
/// up to the clusters. Shares of split tiles go by arrival, so that at any time those running are a
/// prefix; then the owner of a split tile never waits behind workers that cannot start (docs/cuda.md).
CODA_DEVICE PendingClaim begin_claim(const Schedule& s) {
  PendingClaim pending{0, 0, 0};
  if (kSplitTail || s.claim_groups == 0) pending.ticket = atomic_add(&s.claims[kMaxGroups], 1);
  if (s.claim_groups > 0) {
    const u32 sm = sm_id();
    pending.group = sm < kMaxSms ? s.sm_group[sm] : 0;
    pending.place = atomic_add(&s.claims[pending.group], 1);
  }
  return pending;
}
CODA_DEVICE Claim complete_claim(const Schedule& s, PendingClaim pending) {
  if (s.claim_groups == 0) return {pending.ticket, pending.ticket};
  while (pending.place >= s.group_size[pending.group]) {
    pending.group = pending.group + 1 < s.claim_groups ? pending.group + 1 : 0;
    pending.place = atomic_add(&s.claims[pending.group], 1);
  }
  return {pending.ticket, s.worker_at[s.group_first[pending.group] + pending.place]};
}
/// Call from any one thread of the cluster once its claim is complete. The last to do so puts the
/// counters back to zero for the next launch on this stream.
CODA_DEVICE void retire_claim(const Schedule& s) {
  if (atomic_add_ordered(&s.claims[kMaxGroups + 1], 1) + 1 == s.workers) {
    for (int i = 0; i < kMaxGroups + 2; ++i) s.claims[i] = 0;
  }
}

/// Hands out a worker's segments: whole tiles, then its share of the split tiles.
class Work {
 public:
  CODA_DEVICE Work(const Schedule& schedule, Claim claim) : s_(schedule), ticket_(claim.ticket) {
    const bool in_team = claim.worker < schedule.team_workers;
    next_whole_ = in_team ? claim.worker
                          : schedule.team_tiles + claim.worker - schedule.team_workers;
    whole_step_ = in_team ? schedule.team_workers : schedule.workers - schedule.team_workers;
    whole_end_ = in_team ? schedule.team_tiles : schedule.whole_tiles;
    if constexpr (kSplitTail) {
      split_next_ = split_begin(ticket_);
      split_end_ = split_begin(ticket_ + 1);
    }
  }

  /// The next run of k-blocks of a split tile; false when there is none. At most two a worker: the
  /// end or middle of a tile, handed over, then the beginning of a tile, owned.
  CODA_DEVICE bool next_split(Segment& segment) {
    if (split_next_ >= split_end_) return false;
    const int index = split_next_ / s_.k_blocks;
    const int tile_end = (index + 1) * s_.k_blocks;
    const int end = min(split_end_, tile_end);
    segment.tile = s_.whole_tiles + index;
    segment.k_begin = split_next_ - index * s_.k_blocks;
    segment.k_end = end - index * s_.k_blocks;
    segment.last_helper = -1;
    if (segment.k_begin == 0) {
      segment.last_helper = ticket_;
      while (split_begin(segment.last_helper + 1) < tile_end) ++segment.last_helper;
    }
    split_next_ = end;
    return true;
  }

  /// The next whole tile; false when the worker is done.
  CODA_DEVICE bool next_whole(Segment& segment) {
    segment.tile = next_whole_;
    segment.k_begin = 0;
    segment.k_end = s_.k_blocks;
    segment.last_helper = -1;
    next_whole_ += whole_step_;
    return segment.tile < whole_end_;
  }

  CODA_DEVICE bool next(Segment& segment) {
    if (next_whole(segment)) return true;
    if constexpr (kSplitTail) return next_split(segment);
    return false;
  }

 private:
  CODA_DEVICE int split_begin(int ticket) const {
    return static_cast<int>(static_cast<long long>(min(ticket, s_.split_workers)) *
                            s_.split_tiles * s_.k_blocks / s_.split_workers);
  }

  const Schedule& s_;
  int ticket_;
  int next_whole_, whole_step_, whole_end_;
  int split_next_ = 0;
  int split_end_ = 0;
};

/// Index of the block that tile `index` of an axis lies in.
template <int kBlocks>
CODA_DEVICE int block_of(const BlockAxis& axis, int index) {
  int block = 0;
  if constexpr (kBlocks > 1) {
    while (index >= axis.first[block + 1]) ++block;
  }
  return block;
}

/// The tile at a place in the order: groups of `group` columns of tiles one after the other; in a
/// group, row by row. Where `group` is a multiple of kTeam, a team's tiles lie side by side and share
/// their rows of A. With kTeamsDown, rows and columns change places, and a team shares B. (2 x 4 and
/// 4 x 2 tiles moved more through L2; docs/performance-log.md, version 3.)
CODA_DEVICE Tile decode_tile(const Schedule& s, int place, int rank) {
  const int across = kTeamsDown ? s.tiles_m : s.tiles_n;
  const int along = kTeamsDown ? s.tiles_n : s.tiles_m;
  const int per_group = s.group * along;
  const int group = place / per_group;
  const int first = group * s.group;
  const int width = min(s.group, across - first);
  const int rest = place - group * per_group;
  const int line = rest / width;
  const int in_line = first + rest - line * width;
  const int tile_m = kTeamsDown ? in_line : line;
  const int tile_n = kTeamsDown ? line : in_line;

  Tile tile;
  const int block_m = block_of<kBlocksM>(s.axis_m, tile_m);
  const int block_n = block_of<kBlocksN>(s.axis_n, tile_n);
  const int rank_m = kClusterM > 1 ? rank : 0;
  const int rank_n = kClusterN > 1 ? rank : 0;
  tile.c_row = ((tile_m - s.axis_m.first[block_m]) * kClusterM + rank_m) * kTileM;
  tile.a_row = s.axis_m.offset[block_m] + tile.c_row;
  tile.c_column = ((tile_n - s.axis_n.first[block_n]) * kClusterN + rank_n) * kTileN;
  tile.b_row = tile.c_column / kPartsN;
  tile.column = s.axis_n.offset[block_n] + tile.c_column;
  tile.b_block = block_n;
  tile.c_block = kBlocksM > 1 ? block_m : block_n;
  return tile;
}

}  // namespace coda_device
