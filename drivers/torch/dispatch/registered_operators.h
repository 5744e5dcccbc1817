// The operators that are registered now, by name: entering a scope with filters asks which of them are wanted.
#pragma once

#include <ATen/core/operator_name.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "amanda/base/mutex.h"

namespace amanda::pytorch {

class RegisteredOperators {
 public:
  /// Both are called while the dispatcher holds its lock.
  void add(const c10::OperatorName& name);
  void remove(const c10::OperatorName& name);

  /// The operators that a pattern of `OpFilter` matches. A pattern without wildcards takes one look-up.
  std::vector<c10::OperatorName> matching(const std::string& pattern);

  /// Removes the patterns that are settled from `patterns`. Returns the number of times that operators have been added
  /// so far.
  uint64_t drop_settled(std::vector<std::string>& patterns);
  /// The matching operators have been treated, unless operators were added since `additions` was read.
  void settle(const std::vector<std::string>& patterns, uint64_t additions);

 private:
  Mutex mutex_;
  std::unordered_map<std::string, std::vector<c10::OperatorName>> by_name_;  // without namespace and overload
  std::unordered_set<std::string> settled_;
  uint64_t additions_ = 0;
};

RegisteredOperators& registered_operators();

}  // namespace amanda::pytorch
