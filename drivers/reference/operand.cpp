#include "amanda/reference/operand.h"

namespace amanda::reference {

const char* kind(const Operand& operand) {
  static constexpr const char* kKinds[] = {"an array", "a list of arrays", "a number", "a symbol"};
  return kKinds[operand.index()];
}

uint64_t versions(const Operands& operands) {
  uint64_t sum = 0;
  for (const Operand& operand : operands) {
    if (const auto* array = std::get_if<Array>(&operand)) sum += array->version();
    if (const auto* list = std::get_if<std::vector<Array>>(&operand)) {
      for (const Array& array : *list) sum += array.version();
    }
  }
  return sum;
}

}  // namespace amanda::reference
