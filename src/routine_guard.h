// A guard around tools' code: the operators that it runs are not observed.
#pragma once

#include "amanda/driver/backend.h"

namespace amanda {

class RoutineGuard {
 public:
  RoutineGuard(Backend& backend, RoutineMode mode) : backend_(backend), token_(backend.begin_routines(mode)) {}
  ~RoutineGuard() { backend_.end_routines(token_); }
  RoutineGuard(const RoutineGuard&) = delete;
  RoutineGuard& operator=(const RoutineGuard&) = delete;

 private:
  Backend& backend_;
  void* token_;
};

}  // namespace amanda
