"""Tool: analysis routines, the operators they ask for, and the tools they build on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from amanda import _core
from amanda.drivers import op_names

if TYPE_CHECKING:
    from amanda.op_context import OpContext
    from amanda.scope import apply as apply  # set by amanda/__init__.py: the original Amanda has it here


class _OnDemand:
    def __repr__(self) -> str:
        return "amanda.ON_DEMAND"


ON_DEMAND: Final = _OnDemand()
"""``ops=ON_DEMAND``: the routine runs on whatever the tools that depend on this one ask for."""


class Tool:
    """Base of all tools.

    A tool registers *analysis routines*. Each is called once per operator with an `OpContext`, and decides; what it
    schedules there, *instrumentation routines*, is called every time the operator runs::

        class CountOps(amanda.Tool):
            def __init__(self):
                super().__init__()
                self.count = 0
                self.add_inst_for_op(self.analyze, ops="conv2d")

            def analyze(self, context):
                context.insert_before_op(self.tick, inputs=[])

            def tick(self):
                self.count += 1

    Arguments:
        name: what messages call the tool; the class's name if not given.
        namespace: kept for tools written for the original Amanda; has no effect.
    """

    def __init__(self, name: str | None = None, *, namespace: str | None = None) -> None:
        if not isinstance(name, str | None) or not isinstance(namespace, str | None):
            raise TypeError(f"[tool] a tool's name and namespace are strings, got {name!r} and {namespace!r}")
        self._core_tool = _core.Tool(self, name or type(self).__name__, namespace or "")
        self._dependencies: list[Tool] = []

    @property
    def name(self) -> str:
        """What messages call this tool."""
        return str(self._core.name)

    @property
    def _core(self) -> _core.Tool:
        try:
            return self._core_tool
        except AttributeError:
            raise _core.Error(
                f"[tool] {type(self).__name__}.__init__ has not called super().__init__(); call it first"
            ) from None

    def add_inst_for_op(
        self,
        callback: Callable[[OpContext], object],
        backward: bool = False,
        require_outputs: bool = False,
        *,
        ops: str | Iterable[str] | _OnDemand | None = None,
        nested: bool = False,
    ) -> None:
        """Registers an analysis routine.

        Arguments:
            callback: called as ``callback(context)``, once per operator.
            backward: a routine of backward operators, called once for each of an operator's.
            require_outputs: call it after the operator, when the outputs are there.
            ops: the operators asked for, in any case forward ones: a name or names, shell globs allowed. ``"conv2d"`` is
                of any namespace, ``"aten::conv2d"`` of one, ``"add.Tensor"`` one overload. None: every operator.
                `ON_DEMAND`: what dependent tools ask for. A name without globs has to be known: an operator that is
                registered later needs its namespace.
            nested: also operators inside an operator that this tool sees; else only the outermost are seen.

        Raises:
            TypeError: the callback cannot be called, a flag is a name, or `ops` holds something that is no name.
            ValueError: a name is empty, or certainly no operator's.
        """
        core = self._core
        if not callable(callback):
            raise TypeError(f"[tool] {self.name}.add_inst_for_op takes a routine to call, got {callback!r}")
        for flag, value in (("backward", backward), ("require_outputs", require_outputs), ("nested", nested)):
            if isinstance(value, str | Iterable):
                raise TypeError(
                    f"[tool] {self.name}.add_inst_for_op: {flag}= is True or False, got {value!r}; "
                    f"operators are asked for by keyword: ops={value!r}"
                )
        core.add_inst_for_op(callback, backward, require_outputs, self._names(ops), ops is ON_DEMAND, nested)

    def depends_on(self, *tools: Tool) -> None:
        """Lets the routines of `tools` run before this tool's own, at analysis and at run time.

        Applying this tool applies them, too. A cycle is reported when the tool is applied.

        Raises:
            TypeError: one of them is no tool.
        """
        for tool in tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"[tool] {self.name}.depends_on takes tools, got {tool!r}{_maybe_a_class(tool)}")
        for tool in tools:
            self._core.depends_on(tool._core)
            self._dependencies.append(tool)

    def on_enter(self) -> None:
        """A scope with this tool was entered. For subclasses."""

    def on_exit(self, error: BaseException | None) -> None:
        """A scope with this tool was left, by `error` if it is not None. For subclasses."""

    def on_disable(self, error: BaseException | None) -> None:
        """Under ``on_error="disable"``: this tool, or one it depends on, failed and runs no more. For subclasses."""

    def _tell(self, method: str, *arguments: object) -> None:
        getattr(self, method)(*arguments)

    def _names(self, ops: Any) -> list[str] | None:
        if ops is None or ops is ON_DEMAND:
            return None
        alone = isinstance(ops, str) or callable(ops) or not isinstance(ops, Iterable)  # some modules are iterable
        names = [ops] if alone else list(ops)
        for name in names:
            if not isinstance(name, str):
                meant = " or ".join(f"ops={name!r}" for name in op_names.names_for(name))
                raise TypeError(
                    f"[tool] {self.name}.add_inst_for_op: ops= takes operator names, got {name!r}"
                    + (f"; write {meant}" if meant else "")
                )
        for name in names:
            complaint = op_names.complaint(name)
            if complaint is not None:
                raise ValueError(f"[tool] {self.name}: {complaint}")
        return names


class NativeTool(Tool):
    """A tool that is written in C++, made from the capsule in which its extension module hands it over.

    The capsule holds an ``amanda::Tool*`` under the name "amanda.tool", and owns it until this object does. Routines in
    Python can be added; in theirs, ``context.tool`` is None. `on_enter` and its like are the C++ tool's own.

    Raises:
        TypeError: it is no such capsule.
        amanda.Error: its tool was taken before.
    """

    def __init__(self, capsule: object) -> None:
        self._core_tool = _core.adopt_tool(capsule)
        self._dependencies: list[Tool] = []


def _maybe_a_class(value: object) -> str:
    return f"; did you mean {value.__name__}()?" if isinstance(value, type) and issubclass(value, Tool) else ""
