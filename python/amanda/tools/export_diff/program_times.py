"""The times of the operators of a call."""

from __future__ import annotations

import collections
import statistics
import threading

from amanda import apply
from amanda.toolkit import own_work, preserved
from amanda.tools.profile import Profile

from .calls import Call
from .replay import copied

WARM_UPS = 2


def program_times(call: Call, runs: int) -> list[float]:
    """The time of each operator of a call, in nanoseconds: the median of `runs` more calls.

    Raises:
        ValueError: the model does not run again as it ran. The text says why.
    """
    import torch

    model, replay = call.model, call.replay
    assert replay is not None
    if replay.refused:
        raise ValueError(replay.refused)
    if model.training != call.is_training:
        raise ValueError("the model is no longer in the mode (train or eval) of the call")
    profile = Profile(max_events=len(call.ran) * (runs + WARM_UPS) + 1)
    with preserved(model), torch.inference_mode(replay.inference), torch.set_grad_enabled(replay.records):
        for _ in range(runs + WARM_UPS):
            with own_work():
                arguments, keywords = copied(replay.arguments), copied(replay.keywords)
            with apply(profile):
                model(*arguments, **keywords)
    expected = collections.Counter(ran.place.name for ran in call.ran)
    counted = {row.name: row.calls for row in profile.rows("op")}
    spans = profile.spans(threading.get_native_id())
    count = len(call.ran)
    if counted != {name: each * (runs + WARM_UPS) for name, each in expected.items()} or profile.dropped_events:
        raise ValueError("called again, the model runs other operators than in the call that was joined")
    if len(spans) != count * (runs + WARM_UPS):
        raise ValueError("the model runs its operators on several threads")
    taken = [end - start for start, end in spans[count * WARM_UPS :]]
    return [statistics.median(taken[i::count]) for i in range(count)]
