"""scheduler-before-optimizer."""

from __future__ import annotations

from ..rule import Rule, Step


class SchedulerBeforeOptimizer(Rule):
    """A learning-rate scheduler has stepped before the first step of its optimizer, so that the first learning rate of the
    schedule is never used. A scheduler or an optimizer that goes on from a checkpoint is no finding."""

    name = "scheduler-before-optimizer"
    sentence = "the learning-rate scheduler steps before the optimizer"
    fix = "call scheduler.step() after optimizer.step()"
    only_first_steps = True
    bad = """
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            scheduler.step()
            optimizer.step()
    """
    good = """
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            scheduler.step()
    """

    def before_step(self, step: Step) -> None:
        if step.optimizer.state:
            return
        from ..schedulers import schedulers_of

        for scheduler in schedulers_of(step.optimizer):
            count = getattr(scheduler, "_step_count", 1)
            if count > 1 and getattr(scheduler, "last_epoch", 0) == count - 1:
                name = type(scheduler).__name__
                self.found(step.place, f"{name} had stepped {count - 1} times before the optimizer's first step")
