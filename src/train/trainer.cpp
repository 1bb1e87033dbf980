#include "coda/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "train/adamw.h"
#include "train/random.h"

namespace coda {
namespace {

void check(const TrainerOptions& o) {
  const auto in = [](double x, double low, double high) { return x >= low && x <= high; };
  const auto number = [&](const char* name, double value, double low, double high) {
    if (in(value, low, high)) return;
    throw_error<UsageError>("trainer: {}: expected a number from {} to {}, got {}.", name, low,
                            high, value);
  };
  number("learning_rate", o.learning_rate, 0, 1e6);
  number("beta1", o.beta1, 0, 1 - 1e-9);
  number("beta2", o.beta2, 0, 1 - 1e-9);
  number("eps", o.eps, 1e-300, 1);
  number("weight_decay", o.weight_decay, 0, 1e6);
  number("clip", o.clip, 0, 1e30);
}

/// A parameter as the graph has it, and its memory.
struct Held {
  std::string name;
  HostTensor value, gradient;
};

}  // namespace

struct Trainer::State {
  State(Graph& graph, Tensor loss, const std::vector<Tensor>& parameters, Backend& backend,
        std::int64_t max_tokens, const TrainerOptions& wanted);

  void hold(const Graph& graph, const std::vector<Tensor>& parameters);
  const Held& find(std::string_view name) const;

  TrainerOptions options;
  std::vector<Held> held;
  std::vector<Parameter> views;  ///< of held, as AdamW takes them
  std::unique_ptr<AdamW> adamw;
  std::shared_ptr<const Plan> training, evaluation;
  std::unique_ptr<Session> train, test;
  HostTensor loss{DType::f32, 1, 1};
  std::int64_t steps = 0;
};

void Trainer::State::hold(const Graph& graph, const std::vector<Tensor>& parameters) {
  for (const Tensor& parameter : parameters) {
    if (!parameter || &parameter.graph() != &graph) {
      throw_error<UsageError>(
          "trainer: parameters: expected tensors of the graph of the loss, got another.");
    }
    const Node& node = graph.node(parameter.id());
    const Type& type = node.type;
    const bool right = node.op == Op::input && type.dtype == DType::f32 &&
                       (type.kind == Kind::weight || type.kind == Kind::row);
    if (!right) {
      throw_error<UsageError>(
          "trainer: parameters: expected f32 inputs of kind weight or row, got {} {}. Rounding to "
          "16 bits is TrainerOptions::dtype's.",
          node.name.empty() ? "a computed value" : node.name, to_string(type));
    }
    held.push_back({node.name, HostTensor(DType::f32, type.rows, type.cols),
                    HostTensor(DType::f32, type.rows, type.cols)});
    const CounterRandom random(options.seed, stream_of(node.name));
    const auto values = held.back().value.as<float>();
    const double spread = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(type.cols, 1)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = type.kind == Kind::row ? 1.0f : static_cast<float>(spread * random.normal(i));
    }
    std::vector<std::int64_t> shape{type.cols};
    if (type.kind == Kind::weight) shape.insert(shape.begin(), type.rows);
    views.push_back({node.name, std::move(shape), values, held.back().gradient.as<float>()});
  }
}

Trainer::State::State(Graph& graph, Tensor loss_value, const std::vector<Tensor>& parameters,
                      Backend& backend, std::int64_t max_tokens, const TrainerOptions& wanted)
    : options(wanted) {
  check(options);
  if (!backend.on_host()) {
    throw_error<UsageError>(
        "trainer: backend: expected one whose memory the host can use (cpu, reference), got {}. "
        "Bind "
        "memory to sessions of your own, or use `coda train`.",
        backend.name());
  }
  if (!loss_value || &loss_value.graph() != &graph || loss_value.type().kind != Kind::scalar) {
    throw_error<UsageError>("trainer: loss: expected a scalar of the graph, got {}.",
                            loss_value ? to_string(loss_value.type()) : "nothing");
  }
  hold(graph, parameters);
  const AdamWOptions of_adamw{options.beta1, options.beta2, options.eps, options.weight_decay};
  adamw = std::make_unique<AdamW>(views, of_adamw, &backend);

  CompileOptions compile_options;
  compile_options.dtype = options.dtype;
  CompileRequest request;
  request.outputs.push_back({"loss", loss_value, {}, true});
  evaluation = compile(graph, request, compile_options);
  request.outputs[0].cotangent = graph.constant(1);
  request.wrt = parameters;
  training = compile(graph, request, compile_options);
  train = backend.prepare(training, max_tokens);
  test = backend.prepare(evaluation, max_tokens);
  train->bind("loss", loss.view());
  test->bind("loss", loss.view());
  for (const Held& p : held) {
    for (const auto& [plan, session] : {std::pair{training, train.get()}, {evaluation, test.get()}})
      if (plan->find_buffer(p.name) >= 0) session->bind(p.name, p.value.view());
    train->bind("d_" + p.name, p.gradient.view());
  }
}

const Held& Trainer::State::find(std::string_view name) const {
  for (const Held& p : held)
    if (p.name == name) return p;
  throw_error<UsageError>("trainer: expected the name of a parameter, got \"{}\".", name);
}

namespace {

template <class State>
State& held_by(const std::unique_ptr<State>& state) {
  if (state) return *state;
  throw_error<UsageError>(
      "trainer: expected one that holds parameters, got one that was moved from. Use the other.");
}

}  // namespace

Trainer::Trainer(Graph& graph, Tensor loss, const std::vector<Tensor>& parameters, Backend& backend,
                 std::int64_t max_tokens, const TrainerOptions& options)
    : state_(std::make_unique<State>(graph, loss, parameters, backend, max_tokens, options)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

void Trainer::bind(std::string_view name, const TensorView& view) {
  State& s = held_by(state_);
  const bool reserved =
      name == "loss" || std::any_of(s.held.begin(), s.held.end(), [&](const Held& p) {
        return p.name == name || "d_" + p.name == name;
      });
  if (reserved) {
    throw_error<UsageError>(
        "trainer: bind: expected an input that is no parameter, got \"{}\". Write to "
        "values(\"{}\") "
        "instead.",
        name, name);
  }
  s.train->bind(name, view);
  if (s.evaluation->find_buffer(std::string(name)) >= 0) s.test->bind(name, view);
}

double Trainer::step(std::int64_t tokens) {
  State& s = held_by(state_);
  s.train->run(Phase::forward, tokens);
  s.train->run(Phase::backward, tokens);
  const double loss = s.loss.get(0), norm = s.adamw->gradient_norm();
  if (!std::isfinite(loss)) return loss;
  if (!std::isfinite(norm)) return std::nan("");
  const double clip = s.options.clip;
  s.adamw->update(++s.steps, s.options.learning_rate, clip > 0 && norm > clip ? clip / norm : 1.0);
  return loss;
}

double Trainer::evaluate(std::int64_t tokens) {
  State& s = held_by(state_);
  s.test->run(Phase::forward, tokens);
  return s.loss.get(0);
}

void Trainer::set_learning_rate(double learning_rate) {
  State& s = held_by(state_);
  TrainerOptions options = s.options;
  options.learning_rate = learning_rate;
  check(options);
  s.options = options;
}

std::int64_t Trainer::steps() const { return held_by(state_).steps; }

std::span<float> Trainer::values(std::string_view name) {
  return held_by(state_).find(name).value.as<float>();
}

std::span<const float> Trainer::gradient(std::string_view name) const {
  return held_by(state_).find(name).gradient.as<const float>();
}

}  // namespace coda
