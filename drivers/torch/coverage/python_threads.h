// Which threads run Python code. The driver does not link Python: the bindings fill this in.
#pragma once

namespace amanda::pytorch {

/// True if this thread has run Python code. Null if the process has no Python.
extern __attribute__((visibility("default"))) bool (*is_python_thread)();

}  // namespace amanda::pytorch
