"""state-not-copied."""

from __future__ import annotations

from amanda.toolkit import Place

from ..gradients import storage
from ..modes import Stepped
from ..rule import Load, Rule, Step


class StateNotCopied(Rule):
    """A model is loaded with its own tensors: ``best = model.state_dict()`` is no copy, so that each later step changes
    what was kept. Loading it does nothing, and the model is that of the last step, not the best one.

    It looks at `load_state_dict` of a model that an optimizer has trained. All tensors that are loaded must be the model's
    own, in the same memory: a state that was updated with those of another model is no finding. Nor is a line that also
    loads other tensors, as where all models get the state of one of them.
    """

    name = "state-not-copied"
    sentence = "load_state_dict loads what the model has already"
    fix = "keep a copy, copy.deepcopy(model.state_dict()), or a file of torch.save"
    only_first_steps = True
    bad = """
        best = model.state_dict()
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
        model.load_state_dict(best)
    """
    good = """
        model.load_state_dict(model.state_dict())  # nothing is trained yet
        best = {name: value.clone() for name, value in model.state_dict().items()}
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
        other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        other.load_state_dict(model.state_dict())
        model.load_state_dict({**model.state_dict(), "2.bias": torch.zeros(3)})  # a part
        model.load_state_dict(best)
        for one in (model, other):
            one.load_state_dict(model.state_dict())
    """

    def begin(self) -> None:
        self._stepped = Stepped()
        self._own: dict[Place, list[int]] = {}  # by line: numbers of tensors
        self._others: set[Place] = set()  # lines that load other tensors, too

    def after_step(self, step: Step) -> None:
        self._stepped.add(step)

    def after_load(self, load: Load) -> None:
        own = {**dict(load.module.named_buffers()), **dict(load.module.named_parameters())}
        loaded = [(own.get(name), value) for name, value in load.state.items() if hasattr(value, "untyped_storage")]
        if not all(one is not None and storage(one) == storage(value) is not None for one, value in loaded):
            self._others.add(load.place)
        elif loaded and not load.assigns and self._stepped.trains(load.module):
            self._own.setdefault(load.place, []).append(len(loaded))

    def at_end(self, ended_well: bool) -> None:
        for place, numbers in self._own.items():
            if place not in self._others:
                what = f"the {numbers[0]} tensors are the model's own: each step has changed what was kept"
                self.found(place, what, count=len(numbers))
        self.begin()
