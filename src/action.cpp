#include "amanda/action.h"

#include "generation.h"
#include "scheduled_action.h"

namespace amanda {

void Action::remove() {
  if (!scheduled_ || scheduled_->removed.exchange(true)) return;
  if (scheduled_->kind == RoutineKind::kTraceable) ++scheduled_->status->changes;
  plans_changed();
}

bool Action::removed() const { return !scheduled_ || scheduled_->removed; }

}  // namespace amanda
