#include "rematerialization/tool.h"

#include <utility>

namespace amanda::tools::rematerialization {

Rematerialization::Rematerialization(std::shared_ptr<Rematerializer> rematerializer, std::function<void()> push,
                                     std::function<void()> pop)
    : Tool("rematerialization"),
      rematerializer_(std::move(rematerializer)),
      push_(std::move(push)),
      pop_(std::move(pop)) {
  add_inst_for_op(
      [owner = rematerializer_](OpContext& context) {
        if (owner->compiled().leaves_out(context)) return;
        if (context.is_symbolic()) {
          throw Error("[rematerialization] Rematerialization works on operators of PyTorch, and " + context.op().ns +
                      "::" + context.op().name + " is one of " + context.name_space() + "; leave it out of this scope");
        }
        Site* site = owner->add_site(context);
        if (!site) return;
        if (!site->written.empty()) {
          context.insert_before_op([owner, site](Values& values) { owner->before_write(*site, values); },
                                   {.inputs = Positions::none(), .kind = RoutineKind::kObserve, .with_run = false});
          return;
        }
        // Differentiable: the routine runs in the grad and autocast modes of the program, which it reads.
        context.insert_before_op(
            [owner, site](Values& values) { owner->before(*site, values); },
            {.inputs = Positions::none(), .differentiable = true, .kind = RoutineKind::kObserve, .with_run = false});
        context.insert_after_op([owner, site](Values& values) { owner->after(*site, values); },
                                {.outputs = Positions::none(),
                                 .inputs = Positions::all(),
                                 .kind = RoutineKind::kObserve,
                                 .with_run = false});
      },
      {.nested = true});
}

void Rematerialization::on_enter(Scope&) {
  start_counting(rematerializer_);
  push_();
}

void Rematerialization::on_exit(Scope&, const std::exception_ptr& error) {
  pop_();
  stop_counting();
  if (error) {
    rematerializer_->forget_overrun();
  } else {
    rematerializer_->check_budget();
  }
}

}  // namespace amanda::tools::rematerialization
