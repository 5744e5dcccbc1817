"""Tool: analysis routines, the operators they ask for, and the tools they build on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Never, NoReturn, Protocol, Self, cast

from amanda import _core
from amanda.core import keywords, paper_names, unmatched
from amanda.core.analysis_routine import AnalysisRoutine, BackwardUse
from amanda.core.asked_names import AskedNames
from amanda.core.evidence import Evidence, Unseen, UnseenLog
from amanda.core.near_names import did_you_mean, shown
from amanda.driver import op_names

if TYPE_CHECKING:
    from amanda.core.op_context import OpContext


class _OnDemand:
    def __repr__(self) -> str:
        return "amanda.ON_DEMAND"


ON_DEMAND: Final = _OnDemand()
"""``ops=ON_DEMAND``: the routine runs on the operators that the tools which depend on this one ask for."""


class _Ask(NamedTuple):
    """The operators that an analysis routine asks for."""

    backward: bool
    operators: str

    @classmethod
    def of(
        cls,
        names: list[str] | None,
        on_demand: bool,
        modules: list[str] | None,
        backward: bool,
        require_outputs: bool,
        nested: bool,
    ) -> _Ask:
        if on_demand:
            text = "on demand"
        elif names is None:
            text = "every operator"
        else:
            more = len(names) - MAX_NAMES_SHOWN
            text = ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        if modules is not None:
            text += f" in {', '.join(modules)}"
        return cls(backward, text + " with outputs" * require_outputs + " nested" * nested)


MAX_NAMES_SHOWN = 6


class _Unread(Protocol):
    """The values that a tool could not read."""

    def unread(self) -> list[Unseen]: ...


class Tool:
    """Base of all tools.

    A tool registers *analysis routines*. Each is called once per operator with an `OpContext` and decides what to do.
    The *instrumentation routines* that it schedules are called every time the operator runs::

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
        name: the tool's name in messages; the class name by default.

    Raises:
        TypeError: `name` is not a string, or there is another keyword.
    """

    needs_eager: ClassVar[str] = ""
    """Why functions compiled with `torch.compile` have to run eagerly for this tool, as "it reads values in its analysis";
    empty if it can work on compiled code. A scope reads it when it is made: see ``compiled="auto"`` of `amanda.apply`."""

    leaves_compiled_out: ClassVar[bool] = False
    """For a tool that needs eager functions: True if it leaves out the operators of compiled ones. Such functions then
    stay compiled where another scope asks for that."""

    _alone = ""  # why a scope cannot have two of them; empty if it can
    _keeps_evidence = False  # when its results are forgotten, as after each step: it is looked at by another tool

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        keywords.check(f"[tool] {cls.__name__}", kwargs, cls.__init__)
        make: Any = super().__new__
        return cast(Self, make(cls) if make is object.__new__ else make(cls, *args, **kwargs))

    def __init__(self, name: str | None = None, **unknown: Never) -> None:
        paper_names.refuse(unknown, Tool.__init__)
        if not isinstance(name, str | None):
            raise TypeError(f"[tool] a tool's name is a string, got {name!r}")
        self._core_tool = _core.Tool(self, name or type(self).__name__)
        self._dependencies: list[Tool] = []
        self._begin_routines()

    def _begin_routines(self) -> None:
        self._asks: list[_Ask] = []
        self._asked_names: list[AskedNames] = []
        self._narrowed_to: list[AskedNames] = []  # of `narrow`, by all routines of the tool
        self._backward_use = BackwardUse()
        self._unseen_log = UnseenLog()

    def __repr__(self) -> str:
        """Its analysis routines with the operators that they ask for, and the tools it builds on."""
        kind = type(self).__name__
        if not hasattr(self, "_core_tool"):
            return f"<{kind}: super().__init__() was not called>"
        name = self._core_tool.name
        parts = ["written in C++"] if isinstance(self, NativeTool) else []
        parts += [_counted(self._asks, backward) for backward in (False, True)]
        if self._dependencies:
            parts.append("depends on " + ", ".join(tool._core.name for tool in self._dependencies))
        summary = "; ".join(filter(None, parts)) or "no analyses"
        return f"<{kind}: {summary}>" if name == kind else f"<{kind} {name!r}: {summary}>"

    @property
    def name(self) -> str:
        """The tool's name in messages."""
        return str(self._core.name)

    @name.setter
    def name(self, value: Never) -> None:
        raise AttributeError(
            f"[tool] the name of a tool is set when it is created: super().__init__({value!r}) in "
            f"{type(self).__name__}.__init__"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"[tool] {type(self).__name__} cannot be copied or pickled: a tool belongs to its process; create another one, "
            "and pass on what it found as plain data"
        )

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(f"[tool] {type(self).__name__} is a tool, not a scope; write: with amanda.apply(tool):")

        def __exit__(self, *error: object) -> None: ...

        def __getattr__(self, name: str) -> NoReturn:
            """Called for an attribute that there is not, or whose property raised AttributeError."""
            if name.startswith("_") or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises what it raised
            raise AttributeError(
                f"[tool] {type(self).__name__} has no attribute {name!r}{did_you_mean(name, public_names(self))}",
                name=name,
                obj=self,
            )

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
        modules: str | Iterable[str] | None = None,
        nested: bool = False,
        optional: bool = False,
        **unknown: Never,
    ) -> None:
        """Registers an analysis routine.

        Arguments:
            callback: called as ``callback(context)``, once per operator.
            backward: if True, the routine analyzes backward operators, and is called once for each of them.
            require_outputs: if True, the routine is called after the operator has run, when outputs are available.
            ops: the operators to analyse: one name or several; shell globs are allowed. The names are always those of
                forward operators. ``"conv2d"`` matches in any namespace, ``"aten::conv2d"`` in one, ``"add.Tensor"``
                one overload. By default, every operator. With `ON_DEMAND`, the operators that dependent tools ask for.
                A name without globs must be known: name an operator that is registered later with its namespace.
                `amanda.ops` has groups of names.
            modules: only operators that run inside these modules: one path or several, as in `named_modules()`, such as
                ``"encoder.layer.0"``. Shell globs are allowed, and ``*`` also matches dots: ``"encoder.*.attention"``. A
                path stands for the module and everything inside it. By default, everywhere, also outside modules.
            nested: also analyse operators inside an operator that this tool sees. By default, only the outermost
                operators are analysed.
            optional: do not warn if nothing matches `ops` and `modules` while another routine of this tool, or of one that
                it depends on, has work, or if other tools depend on this one. By default, leaving a scope in which
                operators ran warns once (`UnmatchedFilterWarning`).

        Raises:
            TypeError: `callback` is not callable, a flag is a name, `ops` or `modules` contains something other than
                names, or there is another keyword.
            ValueError: there is no name, a name is empty, or certainly not the name of an operator; or a path is not one
                of a module.
        """
        core = self._core
        self._refuse_keywords("add_inst_for_op", unknown)
        if not callable(callback):
            raise TypeError(f"[tool] {self.name}.add_inst_for_op takes a routine to call, got {shown(callback)}")
        suspends = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(suspends_here(callback) for suspends_here in suspends):
            raise TypeError(
                f"[tool] {self.name}.add_inst_for_op: {getattr(callback, '__name__', callback)} is a generator or a "
                "coroutine function, and calling it would run nothing; write it without yield and async"
            )
        for flag, value in (("backward", backward), ("require_outputs", require_outputs), ("nested", nested)):
            if isinstance(value, str | Iterable):
                raise TypeError(
                    f"[tool] {self.name}.add_inst_for_op: {flag}= is True or False, got {value!r}; "
                    f"operators are asked for by keyword: ops={value!r}"
                )
        names, paths = self._names("add_inst_for_op", ops), self._paths("add_inst_for_op", modules)
        asked = [] if optional else _lists(names, paths)
        routine = AnalysisRoutine(callback, self.name, backward, [asked, self._narrowed_to], self._backward_use)
        core.add_inst_for_op(routine, backward, require_outputs, names, ops is ON_DEMAND, nested, paths, optional)
        self._asked_names += asked
        self._asks.append(_Ask.of(names, ops is ON_DEMAND, paths, backward, require_outputs, nested))

    def depends_on(self, *tools: Tool) -> None:
        """Makes the routines of `tools` run before this tool's own, at analysis and at run time.

        Applying this tool also applies them. A dependency cycle is reported when the tool is applied.

        Raises:
            TypeError: one of them is not a tool.
        """
        for tool in tools:
            if not isinstance(tool, Tool):
                raise TypeError(
                    f"[tool] {self.name}.depends_on takes tools, got {shown(tool)}{_meant(tool, 'depends_on')}"
                )
        for tool in tools:
            self._core.depends_on(tool._core)
            self._dependencies.append(tool)

    def narrow(
        self,
        *,
        ops: str | Iterable[str] | None = None,
        modules: str | Iterable[str] | None = None,
        **unknown: Never,
    ) -> None:
        """Restricts the tool to some operators: each of its analysis routines sees what it asks for and what these match::

            profile = Profile()
            profile.narrow(modules="encoder.layer.0")

        It holds for all routines, also those registered later, but not for the tools that this one depends on. If it is
        called twice, both restrictions hold. Call it before `apply`.

        Arguments:
            ops, modules: as in `add_inst_for_op`. By default, there is no restriction.

        Raises:
            TypeError: `ops` or `modules` contains something other than names, or there is another keyword.
            ValueError: there is no name, a name is empty, or certainly not the name of an operator; or a path is not one
                of a module.
            amanda.Error: a scope was already made with this tool.
        """
        self._refuse_keywords("narrow", unknown)
        if isinstance(ops, _OnDemand):
            raise ValueError(f"[tool] {self.name}.narrow: ops= takes operator names, got {ops!r}")
        names, paths = self._names("narrow", ops), self._paths("narrow", modules)
        self._core.narrow(names, paths)
        again = bool(self._narrowed_to)
        self._narrowed_to += _lists(names, paths, may_be_optional=False)
        if again or isinstance(
            self, NativeTool
        ):  # one restriction excludes names of another; routines in C++ are unknown
            for one in self._narrowed_to:
                one.waiting.clear()

    def on_enter(self) -> None:
        """Called when a scope with this tool is entered. Override in subclasses."""

    def on_exit(self, error: BaseException | None) -> None:
        """Called when a scope with this tool is left; `error` is the exception that left it, or None."""

    def on_disable(self, error: BaseException | None) -> None:
        """Called under ``on_error="disable"`` when this tool, or one it depends on, failed and was stopped.

        After a routine failed, it runs as an analysis does: gradients and autocast are off, and no tool observes its
        operators.
        """

    def evidence(self) -> Evidence:
        """The evidence since the tool was made, or since its `reset`: what the tool has looked at, and what ran in its
        scopes that it was not shown or could not read::

            sentinel = NaNSentinel()
            with amanda.apply(sentinel):
                train_one_epoch(model)
            assert sentinel.evidence().is_complete, sentinel.evidence().not_looked_at

        Calls that no driver could show are known where the scope counts them: ``amanda.apply(..., coverage=True)``.
        """
        return Evidence(
            self.name,
            *self._core.analysed(),
            self._values_read(),
            (*self._unseen_log.found(), *self._omissions(), *self._unread()),
        )

    def reset_evidence(self) -> None:
        """Begins `evidence` anew. For the `reset` of tools: what they say afterwards rests on what runs afterwards.

        Operators that the tool has analysed before count again when they run. Operators of graphs go on counting: they are
        analysed once. So do failures and what a driver cannot instrument: a tool is notified of them once. The next run
        of each operator takes a microsecond longer.
        """
        if not self._keeps_evidence:
            self._core.forget_analysed()
            self._unseen_log.clear()

    def _omissions(self) -> list[Unseen]:
        """The operators and expressions that the tool was shown, and did not do its work on."""
        return []

    def _unread(self) -> list[Unseen]:
        """The values that the tool could not read."""
        skips: _Unread | None = getattr(self, "_skips", None)  # of tools that read values
        return skips.unread() if skips is not None else []

    def _values_read(self) -> int | None:
        """The number of tensors and arrays that the tool has read. None if it does not count them."""
        return None

    def _refuse_keywords(self, method: str, unknown: Iterable[str]) -> None:
        for name in unknown:
            keywords.refuse(f"[tool] {self.name}.{method}", name, getattr(Tool, method))

    def _followed(self) -> list[AskedNames]:
        """The filters of which each name is followed: `narrow` may exclude names that a routine asks for."""
        return self._narrowed_to or self._asked_names

    def _asked_text(self) -> str:
        return "; ".join(dict.fromkeys(ask.operators for ask in self._asks)) or "no operator"

    def _tell(self, method: str, *arguments: object) -> None:
        if method == "on_disable":
            self._unseen_log.note("stopped", self.name)
        getattr(self, method)(*arguments)

    def _names(self, method: str, ops: Any) -> list[str] | None:
        if ops is None or ops is ON_DEMAND:
            return None
        alone = isinstance(ops, str) or callable(ops) or not isinstance(ops, Iterable)  # some modules are iterable
        names = [ops] if alone else list(ops)
        if not names:
            raise ValueError(
                f"[tool] {self.name}.{method}: ops= has no name, and would match nothing; leave it out to ask for every "
                "operator"
            )
        for name in names:
            if not isinstance(name, str):
                meant = " or ".join(f"ops={name!r}" for name in op_names.names_for(name))
                raise TypeError(
                    f"[tool] {self.name}.{method}: ops= takes operator names, got {shown(name)}"
                    + (f"; write {meant}" if meant else "")
                )
        for name in names:
            complaint = op_names.complaint(name)
            if complaint is not None:
                raise ValueError(f"[tool] {self.name}: {complaint}")
        return names

    def _paths(self, method: str, modules: Any) -> list[str] | None:
        if modules is None:
            return None
        alone = isinstance(modules, str) or callable(modules) or not isinstance(modules, Iterable)
        paths = [modules] if alone else list(modules)
        for path in paths:
            if not isinstance(path, str):
                raise TypeError(
                    f"[tool] {self.name}.{method}: modules= takes paths as in model.named_modules(), such as "
                    f"'encoder.layer.0', got {shown(path)}"
                )
        return paths


class NativeTool(Tool):
    """A tool written in C++, created from the capsule that its extension module returns.

    The capsule has the name "amanda.tool", holds an ``amanda::Tool*``, and owns it until this object takes ownership.
    You can add routines in Python; ``context.tool`` is None in them. `on_enter`, `on_exit` and `on_disable` are those
    of the C++ tool.

    Raises:
        TypeError: `capsule` is not such a capsule.
        amanda.Error: the capsule's tool was already taken.
    """

    def __init__(self, capsule: object) -> None:
        self._core_tool = _core.adopt_tool(capsule)
        self._dependencies: list[Tool] = []
        self._begin_routines()


def public_names(value: object) -> list[str]:
    """The attributes of an object that are not private."""
    return [name for name in dir(value) if not name.startswith("_")]


def _lists(names: list[str] | None, paths: list[str] | None, *, may_be_optional: bool = True) -> list[AskedNames]:
    """The filters whose names are followed."""
    where = f"modules={unmatched.listed(paths)}" if paths else ""
    found = [AskedNames("ops", names, where, may_be_optional)] if names else []
    return found + ([AskedNames("modules", paths, "", may_be_optional)] if paths else [])


def _counted(asks: list[_Ask], backward: bool) -> str:
    """The routines of a phase as text; empty if there are none."""
    of_phase = [ask for ask in list(asks) if ask.backward == backward]
    if not of_phase:
        return ""
    asked_for = "; ".join(dict.fromkeys(ask.operators for ask in of_phase))
    what = "backward" if backward else "forward"
    return f"{len(of_phase)} {what} {'analysis' if len(of_phase) == 1 else 'analyses'} ({asked_for})"


def _meant(value: object, function: str) -> str:
    """A hint for messages: the correct argument of `function`, which takes tools, where `value` is no tool."""
    if isinstance(value, type) and issubclass(value, Tool):
        return f"; did you mean {value.__name__}()?"
    if isinstance(value, list | tuple | set) and value and all(isinstance(each, Tool) for each in value):
        return f"; give them one by one: {function}(*tools)"
    if callable(value) and not isinstance(value, type) and function != "depends_on":
        return f"; call it inside the scope: with amanda.{function}(tool): {getattr(value, '__name__', 'model')}(...)"
    if type(value).__name__ == "PyCapsule":
        return f"; a tool in C++ is wrapped: {function}(amanda.tool.NativeTool(capsule))"
    return "; a tool is an object of a class in amanda.tools, or of your own, which derives from amanda.Tool"
