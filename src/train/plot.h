// The losses of a run as a picture: SVG text made from metrics.jsonl, for any browser.
#pragma once

#include <string>
#include <string_view>

namespace coda {

/// Training loss (thin: each step, or the mean of neighbours where steps are many; thick: running
/// mean), held-out loss (dots) and skipped steps (ticks below) over steps. Lines that are not
/// metrics are passed over; without any, the axes say so.
std::string loss_plot(std::string_view metrics, std::string_view title);

}  // namespace coda
