// What the PyTorch driver says of its operands, in no framework's terms.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "amanda/torch.h"

namespace amanda {
namespace {

ValueInfo described(c10::IValue operand) { return pytorch::backend().describe({&operand}); }

TEST(ValueInfo, OfATensor) {
  const ValueInfo info = described(torch::ones({2, 3}, torch::kBFloat16));
  EXPECT_EQ(info.kind, ValueKind::kTensor);
  EXPECT_EQ(info.dtype, "bfloat16");
  EXPECT_EQ(info.sizes, (IntVector{2, 3}));
  EXPECT_EQ(info.device, "cpu");
  EXPECT_EQ(info.bytes, 12);
  EXPECT_FALSE(info.requires_grad);
}

TEST(ValueInfo, AViewCountsWhatItShows) {
  EXPECT_EQ(described(torch::ones({1}).expand({4, 5})).bytes, 80);
  EXPECT_EQ(described(torch::ones({})).sizes, IntVector());
  EXPECT_EQ(described(torch::ones({0, 3})).bytes, 0);
}

TEST(ValueInfo, GradientsAndDevices) {
  const auto leaf = torch::ones({2}, torch::requires_grad());
  EXPECT_TRUE(described(leaf).requires_grad);
  EXPECT_TRUE(described(leaf * 2).requires_grad);
  EXPECT_FALSE(described(leaf.detach()).requires_grad);
  EXPECT_EQ(described(torch::ones({2}, torch::device(torch::kMeta))).device, "meta");
}

TEST(ValueInfo, DtypesHavePythonsNames) {
  const std::pair<at::ScalarType, std::string_view> names[] = {
      {torch::kUInt8, "uint8"},           {torch::kInt64, "int64"},     {torch::kHalf, "float16"},
      {torch::kFloat32, "float32"},       {torch::kFloat64, "float64"}, {torch::kBool, "bool"},
      {torch::kComplexFloat, "complex64"}};
  for (const auto& [type, name] : names) EXPECT_EQ(described(torch::empty({1}, type)).dtype, name);
}

TEST(ValueInfo, OfNothing) {
  EXPECT_EQ(pytorch::backend().describe({}).kind, ValueKind::kNone);
  EXPECT_EQ(described(c10::IValue()).kind, ValueKind::kNone);
  EXPECT_EQ(described(at::Tensor()).kind, ValueKind::kNone);
}

TEST(ValueInfo, OfNumbers) {
  const ValueInfo integer = described(-3), yes = described(true), real = described(0.5);
  EXPECT_EQ(integer.kind, ValueKind::kNumber);
  EXPECT_EQ(integer.dtype, "int64");
  EXPECT_EQ(integer.integers, IntVector{-3});
  EXPECT_EQ(yes.dtype, "bool");
  EXPECT_EQ(yes.integers, IntVector{1});
  EXPECT_EQ(real.kind, ValueKind::kNumber);
  EXPECT_EQ(real.dtype, "float64");
  EXPECT_TRUE(real.integers.empty());
  EXPECT_EQ(described(c10::complex<double>(0, 1)).dtype, "complex128");
}

TEST(ValueInfo, OfListsOfNumbers) {
  const ValueInfo integers = described(std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(integers.kind, ValueKind::kNumbers);
  EXPECT_EQ(integers.dtype, "int64");
  EXPECT_EQ(integers.integers, (IntVector{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(described(c10::List<bool>({true, false})).integers, (IntVector{1, 0}));
  EXPECT_EQ(described(std::vector<double>{0.5}).dtype, "float64");
  EXPECT_EQ(described(std::vector<int64_t>{}).kind, ValueKind::kNumbers);
}

TEST(ValueInfo, OfListsOfTensors) {
  const auto leaf = torch::ones({2}, torch::requires_grad());
  const ValueInfo list = described(std::vector<at::Tensor>{torch::ones({3}), leaf});
  EXPECT_EQ(list.kind, ValueKind::kTensors);
  EXPECT_EQ(list.bytes, 20);
  EXPECT_TRUE(list.requires_grad);
  ASSERT_EQ(list.elements.size(), 2u);
  EXPECT_EQ(list.elements[0].sizes, IntVector{3});
  EXPECT_FALSE(list.elements[0].requires_grad);

  const ValueInfo optional = described(c10::List<std::optional<at::Tensor>>({std::nullopt, torch::ones({3})}));
  EXPECT_EQ(optional.kind, ValueKind::kTensors);
  ASSERT_EQ(optional.elements.size(), 2u);
  EXPECT_EQ(optional.elements[0].kind, ValueKind::kNone);
  EXPECT_EQ(optional.bytes, 12);
}

TEST(ValueInfo, OfOtherThings) {
  EXPECT_EQ(described("mean").kind, ValueKind::kOther);
  EXPECT_EQ(described(c10::Device("cpu")).kind, ValueKind::kOther);
  EXPECT_EQ(described(c10::List<std::string>({"a"})).kind, ValueKind::kOther);
}

TEST(ValueInfo, ANestedTensorHasNoSizes) {
  const ValueInfo info = described(at::_nested_tensor_from_tensor_list({torch::ones({2}), torch::ones({3})}));
  EXPECT_EQ(info.kind, ValueKind::kTensor);
  EXPECT_FALSE(info.sizes.has_value());
  EXPECT_EQ(info.bytes, kUnknown);
  EXPECT_EQ(info.dtype, "float32");
}

/// A number that a tracer keeps open.
class OpenNumber : public c10::SymNodeImpl {
 public:
  bool is_int() override { return true; }
  bool is_symbolic() override { return true; }
  int64_t guard_int(const char*, int64_t) override { throw std::logic_error("it was guarded"); }
  std::optional<int64_t> maybe_as_int() override { return std::nullopt; }
  c10::SymNode clone() override { return c10::make_intrusive<OpenNumber>(); }
  c10::SymNode mul(const c10::SymNode&) override { return clone(); }
  c10::SymNode wrap_int(int64_t) override { return clone(); }
  std::string str() override { return "s0"; }
};

TEST(ValueInfo, OpenSizesAreUnknownAndNotGuarded) {
  const c10::SymInt open(c10::SymNode(c10::make_intrusive<OpenNumber>()));
  const auto tensor = torch::ones({2, 3}, torch::device(torch::kMeta));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(std::vector<c10::SymInt>{open, 3},
                                                      std::vector<c10::SymInt>{3, 1});
  const ValueInfo info = described(tensor);
  EXPECT_EQ(info.sizes, (IntVector{kUnknown, 3}));
  EXPECT_EQ(info.bytes, kUnknown);
  EXPECT_EQ(described(open).dtype, "int64");
  EXPECT_TRUE(described(open).integers.empty());
  EXPECT_TRUE(described(std::vector<c10::SymInt>{open, 2}).integers.empty());
  EXPECT_EQ(described(std::vector<at::Tensor>{tensor, torch::ones({3})}).bytes, kUnknown);
}

}  // namespace
}  // namespace amanda
