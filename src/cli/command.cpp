#include "cli/command.h"

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace coda {

void Printer::add_option(CLI::App& app) {
  app.add_flag("--json", json_, "One JSON object a line on stdout, nothing else")->group("Output");
}

void Printer::object(const nlohmann::ordered_json& object) const {
  if (!json_) return;
  print_to(stdout, "{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        constexpr std::size_t kMostDigits = 18;  // fits 64 bits
        const bool good = !text.empty() && text.size() <= kMostDigits &&
                          text.find_first_not_of("0123456789") == std::string::npos;
        return good ? std::string()
                    : fmt::format("expected a whole number of at most {} digits, got {}",
                                  kMostDigits, text);
      },
      "");
}

void DeviceOptions::add_options(CLI::App& app) {
  app.add_option("--device", device,
                 "cpu, cuda (a Hopper GPU), or reference: slow scalar code that defines the result")
      ->group("Device")
      ->capture_default_str();
  app.add_option("--threads", threads, "Threads, 0: all cores. Results do not depend on it")
      ->group("Device")
      ->capture_default_str();
}

std::unique_ptr<Backend> DeviceOptions::make() const {
  constexpr int kMostThreads = 4096;
  if (threads < 0 || threads > kMostThreads) {
    throw_error<UsageError>("--threads: expected 0 (all cores) to {}, got {}.", kMostThreads,
                            threads);
  }
  if (device == "cpu") return make_cpu_backend(threads);
  if (device == "cuda") return make_cuda_backend();
  if (device == "reference") return make_reference_backend(DType::f32);
  throw_error<UsageError>("--device: expected cpu, cuda or reference, got \"{}\".", device);
}

}  // namespace coda
