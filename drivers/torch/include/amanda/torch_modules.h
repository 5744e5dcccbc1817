// Names of the modules and parameters of torch::nn models, for tools in C++ programs. Include after <torch/torch.h>.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace amanda::pytorch {

/// Gives tools the names of a `torch::nn` model's modules, parameters and buffers, as long as this object lives.
///
/// OpContext::parameter_name() is then the name that `named_parameters()` or `named_buffers()` of this model gives the
/// operand, or the tensor that it is a view of; a shared tensor has its first name. `torch::nn` does not report
/// which module runs. So OpContext::module_path(), and with it `.modules` of a filter, goes by the tensors that the
/// operator reads and does not write: it is the innermost module that holds all of them that have names, itself or in
/// its submodules. It is "" for an operator that reads none, or some of two models.
///
/// Create it before you enter scopes: what was analyzed earlier is not analyzed again. Any thread may create and
/// destroy one, but no thread may change the structure of the model while tools ask for names. A module or tensor that
/// was added later has no name until another ModuleNames of the model is created; one that left the model has none.
///
/// It keeps nothing alive. A model that a std::shared_ptr owns may be deleted before it; any other must outlive it. A
/// model may have several. If two models hold a tensor, the ModuleNames that was created first names it. Equal models
/// have equal names.
class ModuleNames {
 public:
  /// Names a model that must outlive this object, if no std::shared_ptr owns it.
  explicit ModuleNames(const torch::nn::Module& model);
  /// Names the model that `model` owns. Throws `Error` if it is null.
  template <class Module>
  explicit ModuleNames(const std::shared_ptr<Module>& model) : ModuleNames(checked(model.get())) {}
  /// Names the model in a holder, such as a `torch::nn::Sequential`. Throws `Error` if the holder is empty.
  template <class Module>
  explicit ModuleNames(const torch::nn::ModuleHolder<Module>& model)
      : ModuleNames(checked(model.is_empty() ? nullptr : model.get())) {}
  ~ModuleNames();

  /// `other` names nothing any more.
  ModuleNames(ModuleNames&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  /// As when both are destroyed, but for the names of `other`. `names = ModuleNames(model)` reads the names anew.
  ModuleNames& operator=(ModuleNames&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

 private:
  static const torch::nn::Module& checked(const torch::nn::Module* model);

  uint64_t number_;  // of the model among those that have names; 0 if it has none
};

}  // namespace amanda::pytorch
