#include "base/python_hooks.h"

namespace amanda::pytorch {

PythonHooks python_hooks;

}  // namespace amanda::pytorch
