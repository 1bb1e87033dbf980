// Maximum flow by Dinic's algorithm, and the minimum cut nearest the sink.
#pragma once

#include <vector>

namespace coda {

class FlowNetwork {
 public:
  explicit FlowNetwork(int nodes) : edges_of_(static_cast<std::size_t>(nodes)) {}

  /// Capacities are whole numbers below 2^53, or infinity.
  void add_edge(int from, int to, double capacity);

  /// Sends as much as possible; returns it (infinity if an infinite path exists).
  double maximize(int source, int sink);

  /// After maximize: for each node, can it still reach the sink?
  std::vector<bool> reaches(int sink) const;

 private:
  struct Edge {
    int to;
    double residual;
  };
  bool find_levels(int source, int sink);
  double push(int node, int sink, double limit);

  std::vector<Edge> edges_;  // edge e and its reverse e ^ 1
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> level_;
  std::vector<std::size_t> next_;
};

}  // namespace coda
