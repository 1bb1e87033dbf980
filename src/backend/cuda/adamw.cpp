#include "backend/cuda/adamw.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/device/adamw_params.cuh"
#include "backend/cuda/device_sources.h"
#include "base/check.h"

namespace coda::cuda {

using coda_device::AdamWCoefficients;
using coda_device::AdamWEntry;
using coda_device::AdamWRun;
using coda_device::kAdamWRun;

KernelSource adamw_source(const char* entry) {
  KernelSource source{"adamw", entry, "", 0};
  source.text = device_text({"params.cuh", "adamw_params.cuh", "ptx.cuh", "elements.cuh",
                             "op_math.cuh", "rows.cuh", "adamw.cuh"});
  return source;
}

namespace {

constexpr unsigned kThreads = 256;  // adamw.cuh

template <class T>
DeviceBuffer uploaded(const std::vector<T>& values, const Stream& stream) {
  DeviceBuffer buffer(values.size() * sizeof(T));
  buffer.upload(values.data(), buffer.bytes(), stream);
  return buffer;
}

class CudaAdamW final : public DeviceAdamW {
 public:
  CudaAdamW(const Stream& stream, std::span<const AdamWTensor> tensors) : stream_(stream) {
    std::vector<AdamWEntry> entries;
    std::vector<AdamWRun> runs;
    for (const AdamWTensor& t : tensors) {
      for (long long first = 0; first < t.count; first += kAdamWRun) {
        runs.push_back({first, static_cast<long long>(entries.size())});
      }
      entries.push_back({t.value, t.gradient, t.first, t.second, t.rounded, t.low, t.count,
                         t.decays ? 1 : 0, t.rounded_dtype == DType::bf16 ? 1 : 0});
    }
    blocks_ = static_cast<unsigned>(runs.size());
    entries_ = uploaded(entries, stream);
    runs_ = uploaded(runs, stream);
    sums_ = DeviceBuffer((runs.size() + 1) * sizeof(double));  // a run's each, then the total
    const KernelSource sources[] = {adamw_source("coda_adamw"), adamw_source("coda_square_sums"),
                                    adamw_source("coda_total")};
    KernelStore& store = KernelStore::get();
    store.prepare({std::begin(sources), std::end(sources)});
    update_ = store.load(sources[0]);
    square_sums_ = store.load(sources[1]);
    total_ = store.load(sources[2]);
  }

  double gradient_square_sum() override {
    if (blocks_ == 0) return 0.0;
    DevicePointer entries = entries_.pointer(), runs = runs_.pointer(), sums = sums_.pointer();
    square_sums_.launch(stream_, blocks_, kThreads, 1, {&entries, &runs, &sums});
    long long count = blocks_;
    DevicePointer total = sums + blocks_ * sizeof(double);
    total_.launch(stream_, 1, kThreads, 1, {&sums, &count, &total});
    double result = 0.0;
    check(driver().memcpy_dtoh_async(&result, total, sizeof(result), stream_.handle()),
          "cuMemcpyDtoHAsync");
    stream_.synchronize();
    return result;
  }

  void update(const AdamWStep& step) override {
    if (blocks_ == 0) return;
    DevicePointer entries = entries_.pointer(), runs = runs_.pointer();
    AdamWCoefficients u{step.scale,      step.beta1, step.beta2, step.size,
                        step.root_scale, step.eps,   step.keep};
    update_.launch(stream_, blocks_, kThreads, 1, {&entries, &runs, &u});
  }

 private:
  const Stream& stream_;
  unsigned blocks_ = 0;
  DeviceBuffer entries_, runs_, sums_;
  Kernel update_, square_sums_, total_;
};

}  // namespace

std::unique_ptr<DeviceAdamW> make_adamw_on(const Stream& stream,
                                           std::span<const AdamWTensor> tensors) {
  return std::make_unique<CudaAdamW>(stream, tensors);
}

}  // namespace coda::cuda
