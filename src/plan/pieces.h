// The widest tile that backward reads (logits, mostly) a piece of rows at a time, so that only a
// piece of it is ever in memory. Works on the steps of a finished plan: what makes the tile, what
// reads it and what is as wide and made of it run once for each piece, one piece after the other.
// Structural: it must not know what the steps compute, only that each row of a result is made of
// the same row of the operands, or that a result is a sum over rows.
#pragma once

#include <cstdint>

#include "coda/plan.h"

namespace coda {

/// Cuts the widest saved tile of which forward makes nothing but vectors into `count` pieces
/// (Piece) and moves the steps of its pieces to the beginning of backward; of forward, what depends
/// on it follows them. Lifetimes and roles must be set; they are set again. Adds a line to
/// plan.rewrites: what was done, or why nothing could be.
void run_in_pieces(Plan& plan, std::int32_t count);

}  // namespace coda
