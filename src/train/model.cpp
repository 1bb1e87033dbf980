#include "train/model.h"

#include <algorithm>

#include "backend/backend.h"

namespace coda {

void Model::zero_gradients() {
  for (const Parameter& p : parameters()) std::fill(p.gradient.begin(), p.gradient.end(), 0.0f);
}

std::vector<AdamWTensor> Model::device_tensors() const { return {}; }

}  // namespace coda
