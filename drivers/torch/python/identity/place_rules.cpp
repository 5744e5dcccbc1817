#include "python/identity/place_rules.h"

#include <stdexcept>

namespace amanda::python {
namespace {

const PlaceRules* installed = nullptr;

}  // namespace

void install_rules(const pybind11::object& fields) { installed = new PlaceRules(fields); }

const PlaceRules& rules() {
  if (!installed) throw std::logic_error("[identity] places are named before the rules for it are installed");
  return *installed;
}

}  // namespace amanda::python
