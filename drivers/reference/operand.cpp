#include "amanda/reference/operand.h"

#include "amanda/driver/backend.h"
#include "amanda/reference/gradient.h"

namespace amanda::reference {
namespace {

struct Describe {
  ValueInfo operator()(const Array& array) const {
    ValueInfo info{.kind = ValueKind::kTensor, .dtype = "float64", .sizes = IntVector(), .device = "cpu"};
    for (size_t size : array.shape()) info.sizes->push_back(static_cast<int64_t>(size));
    info.bytes = static_cast<int64_t>(array.size() * sizeof(double));
    info.requires_grad = requires_gradient(array);
    return info;
  }
  ValueInfo operator()(const std::vector<Array>& list) const {
    ValueInfo info{.kind = ValueKind::kTensors};
    for (const Array& array : list) {
      const ValueInfo& element = info.elements.emplace_back((*this)(array));
      info.bytes += element.bytes;
      info.requires_grad |= element.requires_grad;
    }
    return info;
  }
  ValueInfo operator()(double) const { return {.kind = ValueKind::kNumber, .dtype = "float64"}; }
  ValueInfo operator()(const Symbol&) const { return {.kind = ValueKind::kOther}; }
};

}  // namespace

const char* kind(const Operand& operand) {
  static constexpr const char* kKinds[] = {"an array", "a list of arrays", "a number", "a symbol"};
  return kKinds[operand.index()];
}

ValueInfo info_of(const Operand& operand) { return std::visit(Describe{}, operand); }

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
  for (size_t i = 0; i < operands.size(); ++i) {
    for (const Array& array : arrays({operands[i]})) sum += array.version() * version_weight(i);
  }
  return sum;
}

}  // namespace amanda::reference
