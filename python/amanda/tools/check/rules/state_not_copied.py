"""state-not-copied."""

from __future__ import annotations

from typing import Any

from ..gradients import storage
from ..rule import Load, Rule, Step


class StateNotCopied(Rule):
    """The state of the best epoch is kept as ``best = model.state_dict()``, and loaded at the end of the training. But
    `state_dict()` gives the tensors of the model itself, which go on to change: what is loaded is the last state.

    It looks at calls of `load_state_dict` of a module that an optimizer has trained, of which all tensors are the
    module's own.
    """

    name = "state-not-copied"
    sentence = "the state that is loaded is that of the model itself"
    fix = "keep a copy: copy.deepcopy(model.state_dict()), or save it with torch.save"
    bad = """
        best = model.state_dict()
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
        model.load_state_dict(best)
    """
    good = """
        best = {name: one.clone() for name, one in model.state_dict().items()}
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
        model.load_state_dict(best)
    """

    def begin(self) -> None:
        self._trained: set[int] = set()  # ids of parameters

    def after_step(self, step: Step) -> None:
        if not step.number:
            self._trained.update(map(id, step.parameters))

    def after_load(self, load: Load) -> None:
        own: dict[str, Any] = {**dict(load.module.named_buffers()), **dict(load.module.named_parameters())}
        pairs = [(own.get(name), one) for name, one in load.state.items() if hasattr(one, "untyped_storage")]
        is_trained = any(id(one) in self._trained for one, _ in pairs)
        if is_trained and all(_is_same(one, other) for one, other in pairs):
            self.found(load.place, f"all {len(pairs)} tensors of it are in the memory of the model")


def _is_same(own: Any, given: Any) -> bool:
    return own is not None and storage(own) is not None and storage(own) == storage(given)
