// A guard around tools' code: the operators that it runs are not observed.
#pragma once

#include "amanda/base/no_copy.h"
#include "amanda/driver/backend.h"

namespace amanda {

class RoutineGuard : NoCopy {
 public:
  RoutineGuard(Backend& backend, RoutineMode mode) : backend_(backend), token_(backend.begin_routines(mode)) {}
  ~RoutineGuard() { backend_.end_routines(token_); }

 private:
  Backend& backend_;
  void* token_;
};

}  // namespace amanda
