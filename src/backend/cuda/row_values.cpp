#include "backend/cuda/row_values.h"

#include <algorithm>

#include "backend/cuda/device_sources.h"
#include "ops/op_table.h"

namespace coda::cuda {

std::string Values::loaded_number(const Value& v) {
  const Operand& from = operand(v.operand);
  const std::string at = v.kind == Kind::col ? "r" : "0";
  if (v.attrs.finish == Finish::none) {
    const std::string data = fmt::format("p.operands[{}].data", v.operand);
    if (!is_float(from.dtype)) {
      return fmt::format("load_integer({}, {}, {})", data, at, from.dtype == DType::i64);
    }
    return fmt::format("{}::load({}, {})", element_text(from.dtype), data, at);
  }
  const PartialLoad& partial = partial_of(v.operand);
  if (partial.inside) {
    const std::string& where = parts.at(v.operand);
    if (!is_online(v.attrs.finish)) {
      return fmt::format("finish_{}({}, {})", v.attrs.finish == Finish::max ? "max" : "sum", where,
                         partial.granules);
    }
    const std::string name = fmt::format("online{}", v.operand);
    if (find(name) == nullptr) {
      line(fmt::format("const LogSum {} = finish_online({}, {});", name, where, partial.granules));
      scopes_.back()[name] = name;
    }
    return online(v.attrs.finish, name + ".max", name + ".log_sum()");
  }
  const std::string data = fmt::format("static_cast<const float*>({}.data)", finished(v.operand));
  if (!is_online(v.attrs.finish)) return fmt::format("{}[{}]", data, at);
  return online(v.attrs.finish, fmt::format("{}[{}]", data, at),
                fmt::format("{}[{}.stride + {}]", data, finished(v.operand), at));
}

std::string Values::number(std::int32_t id) {
  if (const std::string* known = find(key_of(id))) return *known;
  const Value& v = value(id);
  std::string text;
  const char* type = is_integer(id) ? "long long" : "float";
  switch (v.op) {
    case Op::constant:
      text = literal_text(v.attrs.value);
      break;
    case Op::load_col:
    case Op::load_scalar:
      text = loaded_number(v);
      break;
    case Op::broadcast:
      text = fp32(v.args[0]);
      break;
    case Op::valid:
      text = fmt::format("{} == {}ll ? 0.0f : 1.0f", number(v.args[0]), v.attrs.ignore_index);
      break;
    default: {
      internal_check(has_op_text(v.op), "rows: {}: {} gives no number here", program_.name,
                     name_of(v.op));
      const std::string a = fp32(v.args[0]);
      text = op_text(v.op, v.attrs, a, v.args.size() > 1 ? fp32(v.args[1]) : std::string());
    }
  }
  const std::string name = fresh("v");
  line(fmt::format("const {} {} = {};", type, name, text));
  define(id, name);
  return name;
}

void Values::load_wide(const Value& v, const Column& column, int n, const std::string& name) {
  if (v.op == Op::load_tile) {
    line(fmt::format("load_chunk<{}>(p.operands[{}].data, at{} + {}, {});",
                     element_text(operand(v.operand).dtype), v.operand, v.operand, column.text(),
                     name));
    return;
  }
  if (v.attrs.finish == Finish::none) {
    line(fmt::format("load_chunk<{}>(p.operands[{}].data, {}, {});",
                     element_text(operand(v.operand).dtype), v.operand, column.text(), name));
    return;
  }
  const std::string from = finished(v.operand);
  line(fmt::format("load_chunk<F32>({}.data, {}, {});", from, column.text(), name));
  if (!is_online(v.attrs.finish)) return;
  const std::string log_sum = fresh("t");
  line(fmt::format("float {}[{}];", log_sum, n));
  line(fmt::format("load_chunk<F32>({0}.data, {0}.stride + {1}, {2});", from, column.text(),
                   log_sum));
  each(n, fmt::format("{}[i] = {};", name, online(v.attrs.finish, name + "[i]", log_sum + "[i]")));
}

/// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; unrotate by the negative angle.
void Values::rotate(const Value& v, const Column& column, int n, const std::string& name) {
  const std::string& cosines = angles.at({v.args[1], v.args[2]});
  const std::int64_t period = width(v.args[2]), half = period / 2;
  const bool forward = v.op == Op::rotate;
  if (v.attrs.layout == PairLayout::halves) {
    if (half % n != 0) throw TooWide{};
    const std::string place = fresh("c");
    line(fmt::format("const int {} = {} % {};", place, column.text(), period));
    const std::string second = fresh("second");
    line(fmt::format("const bool {} = {} >= {};", second, place, half));
    const Column other = derived(
        fmt::format("{} ? {} - {} : {} + {}", second, column.text(), half, column.text(), half), n);
    const std::string x = wide(v.args[0], column, n);
    const std::string partner = wide(v.args[0], other, n);
    const std::string angle = fresh("c");
    line(fmt::format("const int {} = {} ? {} - {} : {};", angle, second, place, half, place));
    each(n, "{");
    line(fmt::format("  const float cosine = ({})[{} + i];", cosines, angle));
    line(fmt::format("  const float sine = ({})[{} + {} + i];", cosines, half, angle));
    line(fmt::format("  const float turned = op::mul({}[i], sine);", partner));
    line(fmt::format("  const float kept = op::mul({}[i], cosine);", x));
    line(fmt::format("  {}[i] = {} {} ? op::add(kept, turned) : op::sub(kept, turned);", name,
                     forward ? "" : "!", second));
    line("}");
    return;
  }
  // Interleaved: both members in the chunk, or (of one column) the neighbour.
  const std::string place = fresh("c");
  line(fmt::format("const int {} = {} % {} / 2;", place, column.text(), period));
  const std::string x = wide(v.args[0], column, n);
  if (n == 1) {
    const std::string second = fresh("second");
    line(fmt::format("const bool {} = {} % 2 != 0;", second, column.text()));
    const Column other =
        derived(fmt::format("{} ? {} - 1 : {} + 1", second, column.text(), column.text()), 1);
    const std::string partner = wide(v.args[0], other, 1);
    line(fmt::format("const float {0}_turned = op::mul({1}[0], ({2})[{3} + {4}]);", name, partner,
                     cosines, half, place));
    line(fmt::format("const float {0}_kept = op::mul({1}[0], ({2})[{3}]);", name, x, cosines,
                     place));
    line(
        fmt::format("{0}[0] = {1} {2} ? op::add({0}_kept, {0}_turned) : op::sub({0}_kept, "
                    "{0}_turned);",
                    name, forward ? "" : "!", second));
    return;
  }
  if (period % n != 0) throw TooWide{};
  each(n / 2, "{");
  line(fmt::format("  const float cosine = ({})[{} + i];", cosines, place));
  line(fmt::format("  const float sine = {}({})[{} + {} + i];", forward ? "" : "-", cosines, half,
                   place));
  line(fmt::format("  const float x1 = {0}[2 * i], x2 = {0}[2 * i + 1];", x));
  line(fmt::format("  {}[2 * i] = op::sub(op::mul(x1, cosine), op::mul(x2, sine));", name));
  line(fmt::format("  {}[2 * i + 1] = op::add(op::mul(x2, cosine), op::mul(x1, sine));", name));
  line("}");
}

void Values::compute_wide(const Value& v, std::int32_t id, const Column& column, int n,
                          const std::string& name) {
  const std::string c = column.text();
  const bool halves = v.attrs.layout == PairLayout::halves;
  switch (v.op) {
    case Op::load_tile:
    case Op::load_row:
      load_wide(v, column, n, name);
      return;
    case Op::broadcast:
      if (is_wide(arg(v, 0))) {
        copy(name, wide(v.args[0], column, n), n);
      } else {
        each(n, fmt::format("{}[i] = {};", name, fp32(v.args[0])));
      }
      return;
    case Op::cols:
      copy(name, wide(v.args[0], column.plus(v.attrs.lo), n), n);
      return;
    case Op::cat_cols: {
      std::int64_t start = 0;
      for (std::size_t i = 0; i < v.args.size(); ++i) {
        const std::int64_t end = start + width(v.args[i]);
        if (start % n != 0) throw TooWide{};
        const bool last = i + 1 == v.args.size();
        open(i == 0 ? fmt::format("if ({} < {})", c, end)
             : last ? "else"
                    : fmt::format("else if ({} < {})", c, end));
        copy(name, wide(v.args[i], column.plus(-start), n), n);
        close();
        start = end;
      }
      return;
    }
    case Op::first_of_pair:
    case Op::second_of_pair: {
      const bool second = v.op == Op::second_of_pair;
      if (!halves) {
        const Column pairs = derived(fmt::format("2 * {}", c), 2 * n);
        if (!column.fits(n)) throw TooWide{};
        const std::string both = wide(v.args[0], pairs, 2 * n);
        each(n, fmt::format("{}[i] = {}[2 * i + {}];", name, both, second ? 1 : 0));
        return;
      }
      const std::int64_t period = v.attrs.period == 0 ? width(v.args[0]) : v.attrs.period;
      const std::int64_t half = period / 2;
      if (half % n != 0) throw TooWide{};
      const Column from = derived(
          fmt::format("{0} / {1} * {2} + {0} % {1} + {3}", c, half, period, second ? half : 0), n);
      copy(name, wide(v.args[0], from, n), n);
      return;
    }
    case Op::join: {
      if (!halves) {
        const Column pairs = derived(fmt::format("{} / 2", c), std::max(1, n / 2));
        if (n == 1) {
          const std::string a = wide(v.args[0], pairs, 1), b = wide(v.args[1], pairs, 1);
          line(fmt::format("{}[0] = {} % 2 == 0 ? {}[0] : {}[0];", name, c, a, b));
          return;
        }
        const std::string a = wide(v.args[0], pairs, n / 2), b = wide(v.args[1], pairs, n / 2);
        each(n, fmt::format("{}[i] = i % 2 == 0 ? {}[i / 2] : {}[i / 2];", name, a, b));
        return;
      }
      const std::int64_t period = v.attrs.period == 0 ? width(id) : v.attrs.period;
      const std::int64_t half = period / 2;
      if (half % n != 0) throw TooWide{};
      const std::string place = fresh("c");
      line(fmt::format("const int {} = {} % {};", place, c, period));
      for (const bool second : {false, true}) {
        open(second ? "else" : fmt::format("if ({} < {})", place, half));
        const Column from = derived(
            fmt::format("{} / {} * {} + {} - {}", c, period, half, place, second ? half : 0), n);
        copy(name, wide(v.args[second ? 1 : 0], from, n), n);
        close();
      }
      return;
    }
    case Op::rotate:
    case Op::unrotate:
      rotate(v, column, n, name);
      return;
    case Op::segment_sum: {
      const std::string& where = segments.at(id);
      each(n, fmt::format("{}[i] = ({})[{} + i];", name, where, c));
      return;
    }
    case Op::segment_broadcast: {
      if (v.attrs.period % n != 0) throw TooWide{};
      const Column segment = derived(fmt::format("{} / {}", c, v.attrs.period), 1);
      const std::string x = wide(v.args[0], segment, 1);
      each(n, fmt::format("{}[i] = {}[0];", name, x));
      return;
    }
    case Op::repeat: {
      const std::int64_t period = width(v.args[0]);
      if (period % n != 0) throw TooWide{};
      copy(name, wide(v.args[0], derived(fmt::format("{} % {}", c, period), n), n), n);
      return;
    }
    case Op::fold: {
      const std::int64_t period = width(id);
      if (period % n != 0) throw TooWide{};
      const std::string time = fresh("fold");
      each(n, fmt::format("{}[i] = 0.0f;", name));
      open(fmt::format("for (int {0} = 0; {0} < {1}; ++{0})", time, v.attrs.hi));
      const Column from = derived(fmt::format("{} + {} * {}", c, time, period), n);
      const std::string x = wide(v.args[0], from, n);
      each(n, fmt::format("{0}[i] = op::add({0}[i], {1}[i]);", name, x));
      close();
      return;
    }
    case Op::onehot: {
      const std::string target = number(v.args[0]);
      const std::string* bad = find(fmt::format("bad{}/{}", v.args[0], v.cols.num));
      internal_check(bad != nullptr, "rows: {}: targets of onehot were not checked", program_.name);
      each(n, fmt::format("{}[i] = {} ? nan_value() : {} == {} + i && {} != {}ll ? 1.0f : 0.0f;",
                          name, *bad, target, c, target, v.attrs.ignore_index));
      return;
    }
    default:
      break;
  }
  internal_check(has_op_text(v.op), "rows: {}: {} has no columns here", program_.name,
                 name_of(v.op));
  std::vector<std::string> args;
  for (const std::int32_t a : v.args) {
    args.push_back(is_wide(value(a)) ? wide(a, column, n) + "[i]" : fp32(a));
  }
  each(n, fmt::format("{}[i] = {};", name,
                      op_text(v.op, v.attrs, args[0], args.size() > 1 ? args[1] : std::string())));
}

std::string Values::wide(std::int32_t id, const Column& column, int n) {
  const std::string key = fmt::format("{}@{}/{}", id, column.text(), n);
  if (const std::string* known = find(key)) return *known;
  if (!column.fits(n)) throw TooWide{};
  const std::string name = fresh("t");
  line(fmt::format("float {}[{}];  // {}", name, n, name_of(value(id).op)));
  compute_wide(value(id), id, column, n, name);
  scopes_.back()[key] = name;
  return name;
}

void check_targets(Values& values, std::int32_t targets, std::int64_t classes, std::int64_t ignored,
                   const std::string& reporter) {
  const std::string key = fmt::format("bad{}/{}", targets, classes);
  if (values.find(key) != nullptr) return;
  const std::string name = values.fresh("bad");
  values.line(fmt::format("const bool {} = bad_target({}, {}ll, {}ll, {});", name,
                          values.number(targets), classes, ignored, reporter));
  values.define_key(key, name);
}

void prepend_row_files(KernelSource& source) {
  source.text = device_text({"params.cuh", "rows_params.cuh", "ptx.cuh", "elements.cuh",
                             "op_math.cuh", "rows.cuh"}) +
                fmt::format("#line 1 \"{}\"\n", source.entry) + source.text;
}

}  // namespace coda::cuda
