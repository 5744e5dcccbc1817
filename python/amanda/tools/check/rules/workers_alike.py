"""workers-alike."""

from __future__ import annotations

import dataclasses
import gc
import sys
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..gradients import storage
from ..memory import Memory
from ..rule import Rule, operands

LOOKED_AT = 64  # batches of each place
SAMPLE = 4096  # elements of a batch
LEAST = 2  # pairs of equal batches


class WorkersAlike(Rule):
    """Batches that follow each other are equal, and come from a `DataLoader` with several workers. Each worker has a copy
    of one random number generator, or reads all of an `IterableDataset`.

    It looks at batches in shared memory, as workers give them without `pin_memory`, where a layer gets them. Equal
    batches must alternate with others, and examples of a batch must differ.
    """

    name = "workers-alike"
    sentence = "the workers of a DataLoader give the same batches"
    fix = "seed each worker in worker_init_fn; split an IterableDataset by torch.utils.data.get_worker_info()"
    ops = (*ops.linear, *ops.matmul, *ops.convolution, "embedding", "to", "flatten", "one_hot")
    bad = """
        class Noise(torch.utils.data.Dataset):
            generator = torch.Generator().manual_seed(0)
            def __len__(self):
                return 24
            def __getitem__(self, index):
                return torch.randn(4, generator=self.generator)
        for batch in torch.utils.data.DataLoader(Noise(), 4, num_workers=2):
            model(batch)
    """
    good = """
        class Noise(torch.utils.data.Dataset):
            def __len__(self):
                return 24
            def __getitem__(self, index):
                return torch.randn(4)
        for batch in torch.utils.data.DataLoader(Noise(), 4, num_workers=2):
            model(batch), model(batch)
    """

    def begin(self) -> None:
        self._seen: dict[tuple[Place, str], _Batches] = {}

    def look(self, context: OpContext) -> None:
        if "torch.utils.data" not in sys.modules:
            return
        for name, operand in operands(context).items():
            if _is_from_worker(operand):
                context.insert_before_op(self._on_run, inputs=[name], place=Place.of(context), name=name)

    def _on_run(self, batch: Any, place: Place, name: str) -> None:
        known = self._seen.setdefault((place, name), _Batches())
        if known.looked < LOOKED_AT and _is_from_worker(batch) and not known.is_same_memory(batch):
            known.looked += 1
            values = self.read(batch, lambda plain: plain.reshape(-1)[:SAMPLE].clone())
            if known.values is not None and values is not None:
                is_equal = known.values.shape == values.shape and bool((known.values == values).all())
                known.equal += is_equal
                known.different += not is_equal
                known.loaders = known.loaders or (_loaders() if known.equal else "")
            known.keep(batch, values)
            known.varies = known.varies and bool(self.read(batch, lambda plain: bool((plain[0] != plain[1]).any())))

    def at_end(self, ended_well: bool) -> None:
        for (place, _), known in self._seen.items():
            if known.varies and known.different and known.equal >= LEAST and known.loaders:
                what = f"{known.equal} of {known.looked} batches are equal to the one before"
                self.found(place, f"{what}; {known.loaders}", count=known.equal)
                break
        self._seen.clear()


@dataclasses.dataclass
class _Batches:
    looked: int = 0
    equal: int = 0
    different: int = 0
    varies: bool = True  # in each batch, examples differ
    values: Any = None  # of the last batch
    memory: Any = None
    loaders: str = ""  # with several workers, when two batches were equal

    def is_same_memory(self, batch: Any) -> bool:
        """It is the last batch once more."""
        return self.memory is not None and self.memory.is_of(batch)

    def keep(self, batch: Any, values: Any) -> None:
        self.values, self.memory = values, Memory(batch)


def _is_from_worker(operand: Any) -> bool:
    import torch

    if not isinstance(operand, torch.Tensor) or isinstance(operand, torch.nn.Parameter) or operand.requires_grad:
        return False
    is_plain = operand.device.type == "cpu" and storage(operand) is not None
    return is_plain and operand.ndim > 0 and operand.shape[0] > 1 and operand.is_shared()


def _loaders() -> str:
    """The loaders that run, and have several workers."""
    kind = "_MultiProcessingDataLoaderIter"
    found = [one for one in gc.get_objects() if type(one).__name__ == kind and getattr(one, "_num_workers", 0) > 1]
    texts = (f"{type(one._dataset).__name__}, num_workers={one._num_workers}" for one in found)
    return " and ".join(f"DataLoader({text})" for text in texts)
