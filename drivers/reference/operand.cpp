#include "amanda/reference/operand.h"

namespace amanda::reference {

const char* kind(const Operand& operand) {
  static constexpr const char* kKinds[] = {"an array", "a list of arrays", "a number", "a symbol"};
  return kKinds[operand.index()];
}

std::vector<Array> arrays(const Operands& operands) {
  std::vector<Array> all;
  for (const Operand& operand : operands) {
    if (const auto* array = std::get_if<Array>(&operand)) all.push_back(*array);
    if (const auto* list = std::get_if<std::vector<Array>>(&operand)) all.insert(all.end(), list->begin(), list->end());
  }
  return all;
}

uint64_t versions(const Operands& operands) {
  uint64_t sum = 0;
  for (const Array& array : arrays(operands)) sum += array.version();
  return sum;
}

}  // namespace amanda::reference
