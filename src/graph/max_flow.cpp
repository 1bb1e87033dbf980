#include "graph/max_flow.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace coda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(int node) { return static_cast<std::size_t>(node); }

}  // namespace

void FlowNetwork::add_edge(int from, int to, double capacity) {
  edges_of_[at(from)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({to, capacity});
  edges_of_[at(to)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({from, 0});
}

bool FlowNetwork::find_levels(int source, int sink) {
  level_.assign(edges_of_.size(), -1);
  level_[at(source)] = 0;
  std::deque<int> queue = {source};
  while (!queue.empty()) {
    const int node = queue.front();
    queue.pop_front();
    for (int e : edges_of_[at(node)]) {
      const Edge& edge = edges_[at(e)];
      if (edge.residual <= 0 || level_[at(edge.to)] >= 0) continue;
      level_[at(edge.to)] = level_[at(node)] + 1;
      queue.push_back(edge.to);
    }
  }
  return level_[at(sink)] >= 0;
}

double FlowNetwork::push(int node, int sink, double limit) {
  if (node == sink) return limit;
  for (std::size_t& i = next_[at(node)]; i < edges_of_[at(node)].size(); ++i) {
    const int e = edges_of_[at(node)][i];
    const Edge edge = edges_[at(e)];
    if (edge.residual <= 0 || level_[at(edge.to)] != level_[at(node)] + 1) continue;
    const double sent = push(edge.to, sink, std::min(limit, edge.residual));
    if (sent <= 0) continue;
    edges_[at(e)].residual -= sent;
    edges_[at(e ^ 1)].residual += sent;
    return sent;
  }
  return 0;
}

double FlowNetwork::maximize(int source, int sink) {
  double total = 0;
  while (find_levels(source, sink)) {
    next_.assign(edges_of_.size(), 0);
    while (const double sent = push(source, sink, kInfinity)) {
      if (sent == kInfinity) return kInfinity;
      total += sent;
    }
  }
  return total;
}

std::vector<bool> FlowNetwork::reaches(int sink) const {
  std::vector<bool> reached(edges_of_.size());
  reached[at(sink)] = true;
  std::deque<int> queue = {sink};
  while (!queue.empty()) {
    const int node = queue.front();
    queue.pop_front();
    for (int e : edges_of_[at(node)]) {  // the reverse of e comes from edge.to to node
      const int from = edges_[at(e)].to;
      if (edges_[at(e ^ 1)].residual <= 0 || reached[at(from)]) continue;
      reached[at(from)] = true;
      queue.push_back(from);
    }
  }
  return reached;
}

}  // namespace coda
