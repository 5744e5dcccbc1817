#include "amanda/action.h"

#include "amanda/error.h"
#include "description.h"
#include "generation.h"
#include "scheduled_action.h"

namespace amanda {

void Action::remove() {
  if (!scheduled_ || scheduled_->removed.exchange(true)) return;
  if (scheduled_->kind == RoutineKind::kTraceable) ++scheduled_->status->changes;
  plans_changed();
}

bool Action::removed() const { return !scheduled_ || scheduled_->removed; }

ActionDescription Action::describe() const {
  if (!scheduled_)
    throw Error("[action] this handle names no action; use one that insert_before_op or its like returned");
  return amanda::describe(*scheduled_);
}

}  // namespace amanda
