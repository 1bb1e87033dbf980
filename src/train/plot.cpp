#include "train/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "train/utf8.h"

namespace coda {
namespace {

struct Point {
  double step, loss;
};

struct Losses {
  std::vector<Point> training, held_out;
  std::vector<double> skipped;  // steps
};

Losses read_losses(std::string_view text) {
  Losses losses;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto line = nlohmann::json::parse(text.substr(0, end), nullptr, false);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number()) continue;
    const auto step = line["step"].get<double>();
    const auto add = [&](const char* key, std::vector<Point>& points) {
      const auto it = line.find(key);  // a loss that is not finite is null
      if (it != line.end() && it->is_number()) points.push_back({step, it->get<double>()});
    };
    if (line.contains("skipped")) {
      losses.skipped.push_back(step);
    } else {
      add("loss", losses.training);
    }
    add("eval_loss", losses.held_out);
  }
  return losses;
}

/// Means of neighbours, so that at most `most` points are left.
std::vector<Point> thinned(const std::vector<Point>& points, std::size_t most) {
  const std::size_t group = (points.size() + most - 1) / std::max<std::size_t>(1, most);
  if (group <= 1) return points;
  std::vector<Point> means;
  for (std::size_t i = 0; i < points.size(); i += group) {
    const std::size_t count = std::min(group, points.size() - i);
    Point mean{0, 0};
    for (std::size_t j = i; j < i + count; ++j) {
      mean.step += points[j].step / static_cast<double>(count);
      mean.loss += points[j].loss / static_cast<double>(count);
    }
    means.push_back(mean);
  }
  return means;
}

std::vector<Point> running_mean(const std::vector<Point>& points) {
  std::vector<Point> smooth;
  const double keep = 1.0 - 1.0 / std::max(1.0, static_cast<double>(points.size()) / 40.0);
  double sum = 0, weight = 0;
  for (const Point& p : points) {
    sum = keep * sum + p.loss;
    weight = keep * weight + 1;
    smooth.push_back({p.step, sum / weight});
  }
  return smooth;
}

/// 1, 2 or 5 times a power of ten, such that about `parts` of them fill the range.
double tick_distance(double range, double parts) {
  const double rough = range / parts;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string escaped(std::string_view text) {
  std::string out, valid;
  append_valid_utf8(text, valid);
  for (const char c : valid) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

/// The frame: ranges of data, and where they lie on the page.
class Frame {
 public:
  Frame(double most_steps, double low, double high)
      : steps_(std::max(1.0, most_steps)), low_(low), high_(high) {}

  double x(double step) const { return kLeft + (kRight - kLeft) * step / steps_; }
  double y(double loss) const {
    return kBottom - (kBottom - kTop) * (loss - low_) / (high_ - low_);
  }

  std::string axes() const {
    std::string svg;
    const double dy = tick_distance(high_ - low_, 6), dx = tick_distance(steps_, 6);
    for (double v = std::ceil(low_ / dy) * dy; v <= high_; v += dy) {
      svg += fmt::format(
          R"(<path class="grid" d="M{} {:.1f}H{}"/><text class="left" x="{}" y="{:.1f}">{:.4g}</text>)",
          kLeft, y(v), kRight, kLeft - 6, y(v) + 4, v);
    }
    for (double v = 0; v <= steps_; v += std::max(1.0, dx)) {
      svg += fmt::format(
          R"(<path class="grid" d="M{:.1f} {}V{}"/><text class="below" x="{:.1f}" y="{}">{:.6g}</text>)",
          x(v), kTop, kBottom, x(v), kBottom + 18, v);
    }
    return svg + "\n";
  }

  std::string line(const char* style, const std::vector<Point>& points) const {
    std::string d;
    for (const Point& p : points) {
      d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? 'M' : 'L', x(p.step), y(p.loss));
    }
    return fmt::format("<path class=\"{}\" d=\"{}\"/>\n", style, d.empty() ? "M0 0" : d);
  }

  std::string dots(const std::vector<Point>& points) const {
    std::string svg;
    for (const Point& p : points) {
      svg += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.5"/>)", x(p.step), y(p.loss));
    }
    return svg + "\n";
  }

  std::string ticks(const std::vector<double>& steps) const {
    std::string svg;
    for (const double step : steps) {
      svg += fmt::format(R"(<path class="skip" d="M{:.1f} {}v-8"/>)", x(step), kBottom);
    }
    return svg + "\n";
  }

  static constexpr int kWidth = 760, kHeight = 420, kLeft = 56, kRight = 744, kTop = 40,
                       kBottom = 376;

 private:
  double steps_, low_, high_;
};

Frame frame_of(const Losses& losses) {
  double steps = 0, low = HUGE_VAL, high = -HUGE_VAL;
  for (const std::vector<Point>* points : {&losses.training, &losses.held_out}) {
    for (const Point& p : *points) {
      steps = std::max(steps, p.step);
      low = std::min(low, p.loss);
      high = std::max(high, p.loss);
    }
  }
  if (low > high) return {steps, 0, 1};
  const double margin = std::max(1e-6, 0.05 * (high - low));
  return {steps, low - margin, high + margin};
}

constexpr const char* kStyle =
    "svg{background:#fff;font:12px sans-serif}.grid{stroke:#ddd}path{fill:none}"
    ".each{stroke:#9bbbe0}.mean{stroke:#1f5fa8;stroke-width:2}circle{fill:#d1495b}"
    ".skip{stroke:#e08a00;stroke-width:2}.left{text-anchor:end}.below{text-anchor:middle}";

}  // namespace

std::string loss_plot(std::string_view metrics, std::string_view title) {
  const Losses losses = read_losses(metrics);
  const Frame frame = frame_of(losses);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" "
      "height=\"{}\">\n<style>{}</style>\n",
      Frame::kWidth, Frame::kHeight, Frame::kWidth, Frame::kHeight, kStyle);
  svg += fmt::format("<text x=\"{}\" y=\"24\">{}: {}</text>\n", Frame::kLeft, escaped(title),
                     losses.training.empty()
                         ? "no step yet"
                         : "loss by step; blue: training and its mean, red: held out");
  svg += frame.axes();
  svg += frame.line("each", thinned(losses.training, 700));
  svg += frame.line("mean", thinned(running_mean(losses.training), 700));
  svg += frame.dots(losses.held_out) + frame.ticks(losses.skipped) + "</svg>\n";
  return svg;
}

}  // namespace coda
