// Which place of the program an operator call is.
#pragma once

#include <ATen/core/ivalue.h>

#include "op_types.h"

namespace amanda::pytorch {

/// The id of a call: the operator, the hash of its Python call path, and which parameters it works on. Never 0.
///
/// Interim: parameters count by address, and where no Python runs there is no path (issue "Identity and cache").
OpId identify(const OpRecord& record, uint64_t call_path, c10::ArrayRef<c10::IValue> arguments);

}  // namespace amanda::pytorch
