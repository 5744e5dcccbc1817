"""Search: the objects that can be reached from the variables of a program, until some tensors are among them."""

from __future__ import annotations

import collections
import gc
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from . import roots, unreached
from .edges import GENERATORS, Edges
from .kinds import untouched
from .names import Name, child_of
from .roots import Root

AT_ONCE = 1024  # objects between two looks at the clock


class Search:
    """Breadth first: a tensor has the name of a shortest way to it. Nothing is called that belongs to the program.

    Arguments:
        serials_of: the numbers of the blocks of memory of some tensors.
        wanted: the numbers of the blocks whose holders are searched for.
        seconds: the longest that it may take, of a processor.
        is_enough: is asked with what was found from the program's own variables: to look at all other objects takes
            longer.
    """

    def __init__(
        self,
        serials_of: Callable[[Sequence[Any]], list[int]],
        wanted: Collection[int],
        seconds: float,
        is_enough: Callable[[Collection[int]], bool],
    ) -> None:
        self._serials_of, self._wanted, self._is_enough = serials_of, set(wanted), is_enough
        self._end = time.thread_time() + seconds
        self._edges = Edges()
        self._objects: list[Any] = []  # alive until the search ends, so that addresses are theirs
        self._parents: list[int] = []
        self._seen: dict[int, int] = {}  # by address: the position
        self._names: dict[int, Name] = {}
        self._tensors: list[int] = []  # positions of those that were not asked for their memory yet
        self.found: dict[int, Name] = {}  #: by the number of the block
        self._nodes: list[int] = []  # positions of those of graphs
        self.nodes: collections.Counter[str] = collections.Counter()  #: of graphs, by the owner's `Name.pattern`
        self.is_complete = True  #: it was not ended by the clock

    def run(self) -> dict[int, Name]:
        """The holders, by the number of the block. Blocks without one are held by C++ code alone, or not by tensors."""
        enabled = gc.isenabled()
        gc.disable()  # a collection would free what the program has not freed yet
        try:
            with untouched():
                self._skip_foreign()
                self._look_everywhere()
                self.nodes.update(self._name(at).pattern for at in self._nodes)
        finally:
            self._objects.clear()
            if enabled:
                gc.enable()
        return self.found

    # ---- the way outwards -------------------------------------------------------------------------------------------

    def _look_everywhere(self) -> None:
        if not (self._explore(roots.of_program()) and self._explore(roots.of_calls())) or self._is_enough(self.found):
            return
        for phase in (self._suspended, roots.of_libraries, self._held_outside, self._in_cycles):
            if not self._explore(phase()) or len(self.found) == len(self._wanted):
                return

    def _skip_foreign(self) -> None:
        """Variables of modules and running functions are roots, and are entered as such alone."""
        for _, module in roots.modules():
            self._seen.setdefault(id(module.__dict__), -1)
        for frame in roots.running():
            self._seen.setdefault(id(frame), -1)

    def _explore(self, starts: Iterable[Root]) -> bool:
        """Follows all that these refer to. Returns false if the time is over."""
        position = len(self._objects)
        for thing, name in starts:
            self._names[len(self._objects)] = name
            self._add(thing, -1)
        while position < len(self._objects):
            for at in range(position, min(position + AT_ONCE, len(self._objects))):
                self._follow(at)
                position = at + 1
            if time.thread_time() > self._end:
                self.is_complete = False
                self._take()
                return False
        self._take()
        return True

    def _follow(self, at: int) -> None:
        thing = self._objects[at]
        edges = self._edges.of(type(thing))
        if edges is None:
            return
        for child in edges(thing):
            if id(child) not in self._seen and self._edges.of(type(child)) is not None:
                self._add(child, at)

    def _add(self, thing: Any, parent: int) -> None:
        self._seen[id(thing)] = len(self._objects)
        if type(thing) in self._edges.tensors:
            self._tensors.append(len(self._objects))
        elif type(thing) in self._edges.nodes:
            self._nodes.append(len(self._objects))
        self._objects.append(thing)
        self._parents.append(parent)

    def _take(self) -> None:
        """Notes the tensors that were reached since the last call."""
        positions, self._tensors = self._tensors, []
        for at, serial in zip(positions, self._serials_of([self._objects[at] for at in positions]), strict=True):
            if serial in self._wanted and serial not in self.found:
                self.found[serial] = self._name(at)

    def _suspended(self) -> list[Root]:
        """The generators that a loop or an expression runs, and no variable has."""
        known = [thing for thing in gc.get_objects() if type(thing) in GENERATORS and id(thing) not in self._seen]
        frames = [getattr(thing, GENERATORS[type(thing)]) for thing in known]
        return [roots.of_frame(frame) for frame in frames if frame is not None and id(frame) not in self._seen]

    # ---- what cannot be reached -------------------------------------------------------------------------------------

    def _others(self) -> list[Any]:
        """Lists the objects that were not reached, and may lead to a tensor."""
        ours = {id(part) for part in (*vars(self).values(), vars(self), self)}
        return [
            thing
            for thing in gc.get_objects()
            if id(thing) not in self._seen and id(thing) not in ours and self._may_lead_to_a_tensor(thing)
        ]

    def _may_lead_to_a_tensor(self, thing: Any) -> bool:
        if type(thing) is tuple:  # there are many, of constants; iterating over one that C code fills crashes
            return any(self._edges.of(type(each)) is not None for each in gc.get_referents(thing))
        return self._edges.of(type(thing)) is not None

    def _held_outside(self) -> list[Root]:
        return list(unreached.held_outside(self._others()))

    def _in_cycles(self) -> list[Root]:
        return list(unreached.in_cycles(self._others()))

    # ---- names ------------------------------------------------------------------------------------------------------

    def _name(self, at: int) -> Name:
        way = []
        while at not in self._names:
            way.append(at)
            at = self._parents[at]
        name = self._names[at]
        for next_one in reversed(way):
            name = child_of(name, self._objects[self._parents[next_one]], self._objects[next_one])
            self._names[next_one] = name
        return name
