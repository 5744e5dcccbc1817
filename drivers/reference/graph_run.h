// Runs a program, instrumented or not.
#pragma once

#include "program.h"

namespace amanda::reference {

Operands run_program(const Program& program, Operands inputs);

}  // namespace amanda::reference
