"""OpContext: the argument of an analysis routine."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from amanda import _core
from amanda.core import missing_keys, routine_checks, unrecorded
from amanda.core.near_names import did_you_mean
from amanda.core.paper_names import PaperNames
from amanda.core.tool import Tool, public_names

_ELSEWHERE = {"name": "op.__name__", "type": "op.__name__", "module": "module_path", "id": "op_id"}
"""What people look for in a context, and where it is."""
MAX_ACTIONS_SHOWN = 8


class OpContext(PaperNames, dict[str, Any]):
    """One operator, and the methods that schedule actions on it.

    It is a dict: the tools that run later see the keys that a tool writes. The context lives as long as its scope.
    Operands are accessible only while an analysis routine runs, and on its thread. A property that does not apply to the
    phase raises an `amanda.Error` that says when it exists.

    Positions of inputs and outputs are those of the schema: conv2d has (input, weight, bias, stride, padding, dilation,
    groups), with the defaults filled in. A ``Tensor[]`` is one position that holds a list. Wherever you pass positions,
    you can also pass names of the schema: ``inputs=["weight"]``.
    """

    __slots__ = ("_handle",)
    _handle: _core.ContextHandle  # set where the context is made, in C++

    def __setattr__(self, name: str, value: object) -> None:
        if name in dir(type(self)):
            raise AttributeError(
                f"[context] {name} of a context cannot be set; routines change operands: return the new values from a "
                "routine of insert_before_op, insert_after_op or replace_op"
            )
        raise AttributeError(f'[context] a context keeps values under keys: context["{name}"] = ...')

    if not TYPE_CHECKING:  # or checkers would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"[context] a context has no attribute {name!r}{self._meant(name)}", name=name, obj=self
            )

    def _meant(self, name: str) -> str:
        if name in self:
            return f'; write context["{name}"]'
        if name in _ELSEWHERE:
            return f"; did you mean context.{_ELSEWHERE[name]}?"
        meant = did_you_mean(name, public_names(type(self)), "context.{}")
        return meant or f'; keys are read with context["{name}"]'

    def __missing__(self, key: str) -> NoReturn:
        error = KeyError(key)
        note = _asked(lambda: missing_keys.note(key, list(self), self._handle))
        if note:
            error.add_note(note)
        raise error

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "[context] a context belongs to its scope, and cannot be copied or pickled; take dict(context), or the values "
            "that you need"
        )

    def __repr__(self) -> str:
        """The operator, its module and line while an analysis runs, the keys without their values, and what is scheduled.

        Never raises.
        """
        parts = [_asked(self._operator_text) or "forgotten by its scope"]
        if module_path := _asked(lambda: self._handle.module_path()):
            parts.append(f"in {module_path}")
        if source := _asked(lambda: self._handle.source()):
            parts.append(f"at {source}")
        keys = ", ".join(map(reprlib.repr, list(self)))
        parts = [" ".join(parts), f"keys: {keys}" if keys else "no keys"]
        if actions := _asked(self._actions_text):
            parts.append(f"scheduled: {actions}")
        return f"<amanda.OpContext {'; '.join(parts)}>"

    def _actions_text(self) -> str:
        texts = [action.short_text() for action in self._handle.actions()]
        more = len(texts) - MAX_ACTIONS_SHOWN
        return ", ".join(texts[:MAX_ACTIONS_SHOWN]) + (f" and {more} more" if more > 0 else "")

    def _operator_text(self) -> str:
        op, backward_op = self._handle.op(), self._handle.backward_op()
        name = f"{op.name}.{op.overload}" if op.overload else op.name
        return f"{backward_op.__name__} of {name}" if backward_op is not None else name

    # ---- inspection -------------------------------------------------------------------------------------------------

    @property
    def op(self) -> _core.Operator:
        """The operator. ``op(*inputs)`` runs the original, without instrumentation. ``op.__name__`` is "conv2d"."""
        return self._handle.op()

    @property
    def op_id(self) -> int:
        """Identifies the operator's place in the program: a 64-bit integer, the same in every iteration."""
        return self._handle.op_id()

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The inputs, as the program passed them: a tensor of the caller is the same Python object.

        In a backward context, the inputs of the forward operator: leaves that require a gradient (parameters), and
        other tensors if they are still alive; otherwise None.

        Raises:
            amanda.Error: the analysis routine has returned.
        """
        return self._handle.inputs()

    @property
    def parameter_names(self) -> tuple[str | tuple[str | None, ...] | None, ...]:
        """Which of the `inputs` are parameters or buffers: for each input its name in its model, or None.

        ``(None, "encoder.0.weight", "encoder.0.bias")`` for a linear operator. Names are those of `named_parameters()`
        and `named_buffers()` of the model, that is the outermost module, without the model's own name. A shared
        parameter has its first name, a view the name of what it is a view of. An input that is a list of tensors, as of
        ``_foreach_add_`` in an optimizer, has a tuple of names. In a backward context, of the forward operator's inputs.

        Raises:
            amanda.Error: the analysis routine has returned.
        """
        return self._handle.parameter_names()

    def attribute(self, name: str) -> str:
        """An attribute of the operator, as text: "NHWC", "[1, 1]". It is fixed when a graph is built, and is no input.
        Empty if the operator has no such attribute. In eager mode, PyTorch's operators have none: all are inputs.

        In a backward context, of the forward operator.

        Raises:
            amanda.Error: the analysis routine has returned.
        """
        return self._handle.attribute(name)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The outputs. In a backward context, see `inputs`.

        Raises:
            amanda.Error: the operator has not run: the routine is registered without ``require_outputs``. Or the analysis
                routine has returned.
        """
        outputs = self._handle.outputs()
        if outputs is None:
            self._refuse("outputs before it has run; register the analysis with require_outputs=True")
        return outputs

    def has_outputs(self) -> bool:
        """True in a ``require_outputs`` analysis, in every backward one, and in a graph, whose outputs are symbols."""
        return self._handle.has_outputs()

    @property
    def backward_op(self) -> _core.Operator:
        """The backward operator, an autograd node with a ``__name__`` such as "ConvolutionBackward0".

        A routine can call it while that operator runs: ``backward_op(*grad_outputs)`` runs the original and returns its
        grad_inputs.

        Raises:
            amanda.Error: this is a forward context.
        """
        backward_op = self._handle.backward_op()
        if backward_op is None:
            self._refuse_in_forward("backward_op")
        return backward_op

    @property
    def backward_op_id(self) -> int:
        """Identifies the backward operator: its forward operator's place, and which of that one's nodes it is.

        Raises:
            amanda.Error: this is a forward context.
        """
        backward_op_id = self._handle.backward_op_id()
        if backward_op_id is None:
            self._refuse_in_forward("backward_op_id")
        return backward_op_id

    @property
    def grad_outputs(self) -> tuple[Any, ...]:
        """Gradients of the outputs: one per output of the node, None if undefined.

        Raises:
            amanda.Error: this is a forward context. Or the analysis routine has returned.
        """
        grad_outputs = self._handle.grad_outputs()
        if grad_outputs is None:
            self._refuse_in_forward("grad_outputs")
        return grad_outputs

    @property
    def grad_inputs(self) -> tuple[Any, ...]:
        """Gradients of the inputs: one for each of the node's ``next_functions``, None if undefined.

        Raises:
            amanda.Error: this is a forward context, or the backward operator has not run: the routine is registered
                without ``require_outputs``. Or the analysis routine has returned.
        """
        grad_inputs = self._handle.grad_inputs()
        if grad_inputs is None:
            if self.is_forward():
                self._refuse_in_forward("grad_inputs", ", require_outputs=True")
            self._refuse(
                "grad_inputs before it has run; register the analysis with backward=True, require_outputs=True"
            )
        return grad_inputs

    def has_grad_inputs(self) -> bool:
        """True in a ``require_outputs`` analysis of a backward operator, and of every one in a graph."""
        return self._handle.has_grad_inputs()

    def is_forward(self) -> bool:
        """True in the context of a forward operator."""
        return self._handle.is_forward()

    def is_backward(self) -> bool:
        """True in the context of a backward operator."""
        return not self.is_forward()

    @property
    def namespace(self) -> str:
        """Framework, version and mode: "pytorch/2.13/eager"."""
        return self._handle.namespace()

    @property
    def module_path(self) -> str:
        """The name, in the model, of the module that runs: "encoder.layer.3.attention". "" outside modules."""
        return self._handle.module_path()

    @property
    def source(self) -> str:
        """The line of user code that calls the operator: "model.py:12"."""
        return self._handle.source()

    @property
    def is_recompute(self) -> bool:
        """True if a checkpointed region is being recomputed for its backward pass."""
        return self._handle.is_recompute()

    @property
    def is_symbolic(self) -> bool:
        """True if the operands are symbols of a graph, not values. False in eager mode."""
        return self._handle.is_symbolic()

    @property
    def depth(self) -> int:
        """The number of enclosing operators that the tool also sees; above 0 only with ``nested=True``."""
        return self._handle.depth()

    @property
    def tool(self) -> Tool:
        """The tool whose analysis is running."""
        tool: Tool = self._handle.tool()
        return tool

    def _refuse(self, what: str) -> NoReturn:
        raise _core.Error(f"[context] {self._operator_text()} has no {what}")

    def _refuse_in_forward(self, what: str, more: str = "") -> NoReturn:
        self._refuse(f"{what} in a forward analysis; register an analysis with backward=True{more}")

    # ---- instrumentation --------------------------------------------------------------------------------------------

    def insert_before_op(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[int | str] | None = None,
        *,
        with_run: bool = False,
        differentiable: bool = False,
        allow_view: bool = False,
        traceable: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_inputs, **kwargs)`` before the operator, each time it runs.

        Arguments:
            fn: returns None to keep the inputs, one value for the only selected position, or one value per position. A
                value must have the type, dtype and device of the one it replaces; None as an element keeps that position.
            inputs: positions or names; None selects all, [] selects none.
            with_run: passes ``run``, a `Run`: a dict that the tool's routines share during one execution, those of its
                backward operators included.
            differentiable: autograd records the routine. By default, a value takes over the gradient edge of the value
                it replaces.
            allow_view: `fn` may replace a tensor that the operator's result is a view of; they share no memory then.
            traceable: a compiled function (``compiled="graph"``) may take in the operators that `fn` calls, and compile
                them with its own, instead of calling `fn` each time. `fn` is called when the function is compiled, with
                tensors that have a shape and no elements. Tensors of `fn` itself, such as a mask, are read when the
                function runs; all else that it reads is fixed until the action is removed. If PyTorch cannot trace it,
                it is called each time. Elsewhere it makes no difference.
            kwargs: passed to `fn`.

        Raises:
            TypeError: `fn` cannot be called, or cannot take what it will be given; `inputs` is no list of positions and
                names; a keyword is a misspelt option; `traceable` and `with_run` are both set.
            ValueError: the operator has no such position, or one is selected twice.
            amanda.Error: the analysis routine has returned.
        """
        flags = {"differentiable": differentiable, "allow_view": allow_view, "traceable": traceable}
        return self._schedule("insert_before_op", fn, kwargs, inputs, (), with_run=with_run, **flags)

    def insert_after_op(
        self,
        fn: Callable[..., Any],
        outputs: Sequence[int | str] | None = None,
        *,
        inputs: Sequence[int | str] | None = (),
        with_run: bool = False,
        differentiable: bool = False,
        allow_view: bool = False,
        traceable: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_outputs, **kwargs)`` after the operator; with `inputs`, ``fn(*selected_outputs,
        inputs=selected_inputs, **kwargs)``. See `insert_before_op`.

        Arguments:
            outputs: positions or names; None selects all, [] selects none. The values that `fn` returns replace these.
            inputs: positions or names, to look at: `fn` gets what the operator ran on, as a tuple. None selects
                all; with [], the default, `fn` gets no such argument. An input that an in-place operator writes to is
                its result by then.
            allow_view: `fn` may replace a view; the new value shares no memory with the input.

        Raises:
            amanda.Error: the framework shows the outputs alone after an operator, as graphs may do.
        """
        flags = {"differentiable": differentiable, "allow_view": allow_view, "traceable": traceable}
        return self._schedule("insert_after_op", fn, kwargs, outputs, inputs, with_run=with_run, **flags)

    def replace_op(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[int | str] | None = None,
        *,
        with_run: bool = False,
        allow_view: bool = False,
        traceable: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_inputs, **kwargs)`` instead of the operator; what it returns is the result.

        The replacement acts as the operator: it runs in the program's gradient mode. Calling ``context.op``
        in it runs the original, or the replacement by a tool that this one depends on: on the program's tensors
        themselves, where it is given operands as the replacement received them. A replacement that returns what it got
        from that is no change: the program gets that result itself, a view as that view.

        Raises:
            amanda.Error: the operator returns a view and `allow_view` is not set.
        """
        flags = {"with_run": with_run, "allow_view": allow_view, "traceable": traceable}
        return self._schedule("replace_op", fn, kwargs, inputs, (), **flags)

    def insert_before_backward_op(
        self,
        fn: Callable[..., Any],
        grad_outputs: Sequence[int] | None = None,
        *,
        with_run: bool = False,
        differentiable: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_grad_outputs, **kwargs)`` before the backward operator, each time it runs.

        In a forward context, it runs before each backward operator that the forward operator creates and that has the
        selected positions (except AccumulateGrad, which only a backward analysis can select). Positions are those of
        the autograd node: ``grad_outputs[i]`` belongs to its i-th output. An undefined gradient is None.

        Arguments:
            fn, with_run, kwargs: see `insert_before_op`. A value must have the gradient's shape, dtype and device.
            grad_outputs: positions; None selects all, [] selects none.
            differentiable: autograd records the routine, under ``create_graph=True``.

        Raises:
            TypeError: as of `insert_before_op`.
            ValueError: the operator has no such position, or one is selected twice.
            amanda.Error: the analysis routine has returned.
        """
        flags = {"with_run": with_run, "differentiable": differentiable}
        return self._schedule("insert_before_backward_op", fn, kwargs, grad_outputs, (), **flags)

    def insert_after_backward_op(
        self,
        fn: Callable[..., Any],
        grad_inputs: Sequence[int] | None = None,
        *,
        grad_outputs: Sequence[int] | None = (),
        with_run: bool = False,
        differentiable: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_grad_inputs, **kwargs)`` after the backward operator; with `grad_outputs`,
        ``fn(*selected_grad_inputs, grad_outputs=selected_grad_outputs, **kwargs)``.

        See `insert_before_backward_op`. ``grad_inputs[i]`` flows along the node's ``next_functions[i]``. AccumulateGrad
        has none: after it, the leaf's ``.grad`` holds the gradient.

        Arguments:
            grad_outputs: positions, to look at: `fn` gets the gradients that came in, as a tuple. None selects
                all; with [], the default, `fn` gets no such argument.
        """
        flags = {"with_run": with_run, "differentiable": differentiable}
        return self._schedule("insert_after_backward_op", fn, kwargs, grad_inputs, grad_outputs, **flags)

    def replace_backward_op(
        self,
        fn: Callable[..., Any],
        grad_outputs: Sequence[int] | None = None,
        *,
        with_run: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_grad_outputs, **kwargs)`` instead of the backward operator. It returns the
        grad_inputs, one for each of the node's ``next_functions`` (None: undefined).

        It takes effect at once: if it is scheduled during a backward pass, the original does not run in that pass.

        Raises:
            amanda.Error: the operator is AccumulateGrad.
        """
        return self._schedule("replace_backward_op", fn, kwargs, grad_outputs, (), with_run=with_run)

    def may_mutate(self) -> None:
        """Allows the routines that this analysis schedules to modify their arguments in place."""
        self._handle.may_mutate()

    def _schedule(
        self,
        method: str,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        gets: Sequence[int | str] | None,
        shown: Sequence[int | str] | None,
        **flags: bool,
    ) -> _core.Action:
        if any(flag is not False for flag in flags.values()):
            _check_flags(flags)
        action = self._handle.schedule(method, fn, kwargs, gets, shown, **flags)
        if flags.get("differentiable") is False:
            unrecorded.warn(self.tool.name, method, fn, kwargs, self._handle.inputs)
        return action


def _check_flags(flags: Mapping[str, object]) -> None:
    for name, value in flags.items():
        if not isinstance(value, int):
            raise TypeError(f"[context] {name}= is True or False, got {value!r}")
    if flags.get("traceable") and flags.get("with_run"):
        raise TypeError(
            "[context] traceable=True and with_run=True exclude each other: a routine that becomes part of a compiled "
            "function is not called in each execution; leave out one of them"
        )


def _asked(question: Callable[[], str]) -> str:
    """The answer; empty where the scope is gone, or no analysis runs any more."""
    try:
        return question()
    except Exception:
        return ""


_core.set_context_class(OpContext)
_core.set_routine_checks(routine_checks.check_given, routine_checks.returns_nothing)
