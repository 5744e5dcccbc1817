#include "amanda/action.h"

#include "generation.h"
#include "plan.h"

namespace amanda {

void Action::remove() {
  if (scheduled_ && !scheduled_->removed.exchange(true)) plans_changed();
}

bool Action::removed() const { return !scheduled_ || scheduled_->removed; }

}  // namespace amanda
