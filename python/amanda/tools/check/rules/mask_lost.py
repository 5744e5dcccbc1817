"""mask-lost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place
from amanda.toolkit.frames import short_line
from amanda.toolkit.frameworks import shows_after_run

from ..rule import Rule
from ..sequences import begins_with_padding, ends_with_padding
from ..shared_operators import WITH_OUTPUTS

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import LostMask

LEAST = 2  # batches
MOST = 8  # that are read


class MaskLost(Rule):
    """The mask of an `Embedding` with `mask_zero` does not arrive: a recurrent layer, attention or average pooling reads
    the steps of padding as data. Keras passes a mask from layer to layer, and warns where a layer drops it. It does not
    pass it through operators, as in ``embedding * scale``, ``x + position`` and functions of `keras.ops`, nor out of a
    layer of one's own that does not compute the mask of its result.

    It looks at graphs, and so at `fit`: at embeddings whose ids are compared with 0, with a result that nothing uses. It
    reads the ids of eight batches, and reports padding at one end, of other lengths, in two batches or more.
    """

    name = "mask-lost"
    sentence = "the mask of padding is lost on the way to a layer that would use it"
    fix = (
        "compute in layers that pass masks on, such as Rescaling and Add; in a layer of your own, set supports_masking = "
        "True, or return self.embedding.compute_mask(ids) in compute_mask; or give the layer mask=..."
    )
    is_of_tensorflow = True
    group = "of TensorFlow"
    ops = WITH_OUTPUTS
    with_outputs = True
    bad = """
        ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 0]] * 8)
        inputs = keras.Input((5,))
        rows = keras.layers.Embedding(8, 4, mask_zero=True)(inputs) * 2.0
        model = keras.Model(inputs, keras.layers.LSTM(3)(rows))
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(ids, np.ones((16, 3)), batch_size=8, verbose=0)
    """
    good = """
        ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 0]] * 8)
        inputs = keras.Input((5,))
        rows = keras.layers.Rescaling(2.0)(keras.layers.Embedding(8, 4, mask_zero=True)(inputs))
        model = keras.Model(inputs, keras.layers.LSTM(3)(rows))
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(ids, np.ones((16, 3)), batch_size=8, verbose=0)
    """

    def begin(self) -> None:
        self._lost: dict[Place, _Lost] = {}

    def look(self, context: OpContext) -> None:
        if shows_after_run(context) or context.op.__name__ not in ("GatherV2", "ResourceGather"):
            return
        from amanda.toolkit.tensorflow import lost_mask

        ids = context.inputs[1]
        if ids.dtype.is_integer and ids.shape.rank == 2:
            lost = lost_mask(ids, context.outputs[0])
            if lost is not None:
                known = self._lost.setdefault(Place.of(context), _Lost(lost))
                context.insert_before_op(self._on_run, inputs=[1], known=known)

    def _on_run(self, ids: Any, known: _Lost) -> None:
        if known.batches < MOST:
            known.batches += 1
            share = self.read_with(ids, _padding)
            known.padded += bool(share)
            known.share = known.share or share or ""

    def at_end(self, ended_well: bool) -> None:
        for place, one in self._lost.items():
            if one.padded >= LEAST:
                lost = one.mask
                where = f" ({short_line(lost.source)})" if lost.source else ""
                what = f"{lost.kind} {lost.layer} reads {one.share}; no mask gets past {lost.operator}{where}"
                self.found(place, what, count=one.padded)
        self._lost.clear()


@dataclasses.dataclass
class _Lost:
    mask: LostMask
    batches: int = 0
    padded: int = 0
    share: str = ""


def _padding(ids: Any, arrays: Arrays) -> str:
    """How much padding is at one end of the rows; empty if there is none, or zeros are elsewhere."""
    is_pad = ids == 0
    if not is_pad.any() or not (ends_with_padding(is_pad) or begins_with_padding(is_pad)):
        return ""
    return f"padding as data, {int(is_pad.sum())} of {is_pad.size} steps of a batch"
