// Properties of the order of tools, on many random graphs of dependencies.
#include "resolver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "amanda/error.h"

namespace amanda {
namespace {

constexpr unsigned kCases = 500;

/// Tools t0, t1, ... with random dependencies: acyclic, each on some that come earlier in a hidden order.
struct RandomTools {
  explicit RandomTools(unsigned seed) : random(seed) {
    const size_t count = pick(1, 30);
    for (size_t i = 0; i < count; ++i) tools.push_back(std::make_unique<Tool>("t" + std::to_string(i)));
    hidden.resize(count);
    std::iota(hidden.begin(), hidden.end(), 0);
    std::shuffle(hidden.begin(), hidden.end(), random);
    const double density = std::uniform_real_distribution<>(0, 1)(random);
    edges.assign(count, std::vector<bool>(count, false));
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (std::bernoulli_distribution(density)(random)) add_edge(hidden[i], hidden[j]);
      }
    }
  }

  size_t pick(size_t low, size_t high) { return std::uniform_int_distribution<size_t>(low, high)(random); }

  void add_edge(size_t from, size_t to) {
    tools[from]->depends_on(*tools[to]);
    edges[from][to] = true;
  }

  /// Some of the tools, in any order, perhaps twice.
  std::vector<size_t> some() {
    std::vector<size_t> chosen(pick(1, tools.size()));
    for (size_t& i : chosen) i = pick(0, tools.size() - 1);
    return chosen;
  }

  std::vector<Tool*> pointers(const std::vector<size_t>& indices) const {
    std::vector<Tool*> result;
    for (size_t i : indices) result.push_back(tools[i].get());
    return result;
  }

  /// reachable[i][j]: does i depend on j? The oracle: Warshall's closure.
  std::vector<std::vector<bool>> reachable() const {
    auto closure = edges;
    for (size_t k = 0; k < tools.size(); ++k) {
      for (size_t i = 0; i < tools.size(); ++i) {
        for (size_t j = 0; j < tools.size(); ++j) {
          if (closure[i][k] && closure[k][j]) closure[i][j] = true;
        }
      }
    }
    return closure;
  }

  std::mt19937 random;
  std::vector<std::unique_ptr<Tool>> tools;
  std::vector<size_t> hidden;
  std::vector<std::vector<bool>> edges;
};

size_t index_of(const std::vector<Tool*>& order, const Tool* tool) {
  return std::find(order.begin(), order.end(), tool) - order.begin();
}

TEST(ResolverTest, EachToolAndEachDependencyIsThereOnceDependenciesFirst) {
  for (unsigned seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    RandomTools all(seed);
    const auto chosen = all.some();
    const auto order = resolve(all.pointers(chosen));
    const auto reachable = all.reachable();
    for (size_t i = 0; i < all.tools.size(); ++i) {
      const bool needed =
          std::any_of(chosen.begin(), chosen.end(), [&](size_t c) { return c == i || reachable[c][i]; });
      ASSERT_EQ(std::count(order.begin(), order.end(), all.tools[i].get()), needed ? 1 : 0);
      if (!needed) continue;
      for (size_t j = 0; j < all.tools.size(); ++j) {
        if (!all.edges[i][j]) continue;
        ASSERT_LT(index_of(order, all.tools[j].get()), index_of(order, all.tools[i].get()));
      }
    }
  }
}

TEST(ResolverTest, ToolsThatNothingTiesKeepTheOrderTheyAreAppliedIn) {
  for (unsigned seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    RandomTools all(seed);
    std::vector<Tool*> free;
    for (size_t i : all.hidden) {
      if (std::none_of(all.edges[i].begin(), all.edges[i].end(), [](bool edge) { return edge; })) {
        free.push_back(all.tools[i].get());
      }
    }
    ASSERT_EQ(resolve(free), free);
  }
}

TEST(ResolverTest, AnOrderThatFitsIsKept) {
  for (unsigned seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    RandomTools all(seed);
    ASSERT_EQ(resolve(all.pointers(all.hidden)), all.pointers(all.hidden));
  }
}

TEST(ResolverTest, DependingIsReachability) {
  for (unsigned seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    RandomTools all(seed);
    const auto reachable = all.reachable();
    for (size_t i = 0; i < all.tools.size(); ++i) {
      for (size_t j = 0; j < all.tools.size(); ++j) {
        ASSERT_EQ(depends(*all.tools[i], *all.tools[j]), reachable[i][j]);
      }
    }
  }
}

TEST(ResolverTest, ACycleIsAlwaysReportedAndIsOne) {
  for (unsigned seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    RandomTools all(seed);
    // Close a path that is there, or make a tool depend on itself.
    const size_t from = all.pick(0, all.tools.size() - 1);
    std::vector<size_t> ends{from};
    const auto reachable = all.reachable();
    for (size_t j = 0; j < all.tools.size(); ++j) {
      if (reachable[from][j]) ends.push_back(j);
    }
    all.add_edge(ends[all.pick(0, ends.size() - 1)], from);

    std::string text;
    try {
      resolve(all.pointers(all.hidden));
    } catch (const Error& error) {
      text = error.what();
    }
    const std::string head = "[resolve] dependency cycle: ", tail = "; take out one of these depends_on";
    ASSERT_EQ(text.substr(0, head.size()), head);
    ASSERT_EQ(text.substr(text.size() - tail.size()), tail);
    std::vector<size_t> cycle;
    std::string names = text.substr(head.size(), text.size() - head.size() - tail.size()) + " -> ";
    for (size_t end; (end = names.find(" -> ")) != std::string::npos; names = names.substr(end + 4)) {
      cycle.push_back(std::stoul(names.substr(1, end - 1)));
    }
    ASSERT_GE(cycle.size(), 2u);
    ASSERT_EQ(cycle.front(), cycle.back());
    for (size_t i = 1; i < cycle.size(); ++i) ASSERT_TRUE(all.edges[cycle[i - 1]][cycle[i]]);
  }
}

TEST(ResolverTest, DependingEndsOnACycle) {
  Tool a("a"), b("b"), c("c");
  a.depends_on(b);
  b.depends_on(a);
  EXPECT_TRUE(depends(a, a));
  EXPECT_FALSE(depends(a, c));
}

}  // namespace
}  // namespace amanda
