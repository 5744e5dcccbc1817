"""all-frozen."""

from __future__ import annotations

from ..rule import Rule, Step


class AllFrozen(Rule):
    """An optimizer steps, none of its parameters requires a gradient, and none has one: it trains nothing."""

    name = "all-frozen"
    sentence = "the optimizer has nothing to train"
    fix = "unfreeze what is to be trained, requires_grad_(True), or give the optimizer those parameters"
    bad = """
        model.requires_grad_(False)
        for _ in range(2):
            loss = F.cross_entropy(model(x.clone().requires_grad_()), labels)
            loss.backward()
            optimizer.step()
    """
    good = """
        model[0].requires_grad_(False)
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
    """

    def before_step(self, step: Step) -> None:
        if not any(one.requires_grad or one.grad is not None for one in step.parameters) and not step.has_closure:
            self.found(step.place, f"none of its {len(step.parameters)} parameters requires a gradient")
