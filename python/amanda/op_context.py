"""OpContext: what an analysis routine is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amanda import _core, routine_checks
from amanda.tool import Tool


class OpContext(dict[str, Any]):
    """One operator, and the means to schedule actions on it.

    It is a dict: keys that one tool writes are seen by the tools that run after it, and the context lasts as long as its
    scope. Operands are reachable only while an analysis routine runs; what does not apply to the phase is None.

    Positions of inputs and outputs are the schema's: conv2d has (input, weight, bias, stride, padding, dilation, groups),
    with the defaults filled in. A ``Tensor[]`` is one position that holds a list. Wherever positions are asked for, the
    schema's names do as well: ``inputs=["weight"]``.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: _core.ContextHandle) -> None:
        super().__init__()
        self._handle = handle

    # ---- inspection -------------------------------------------------------------------------------------------------

    def get_op(self) -> _core.Operator:
        """The operator. Callable: ``op(*inputs)`` runs the original, uninstrumented. ``op.__name__`` is "conv2d"."""
        return self._handle.op()

    def get_op_id(self) -> int:
        """The operator's place in the program: 64 bits, the same in every iteration."""
        return self._handle.op_id()

    def get_inputs(self) -> tuple[Any, ...]:
        """The inputs, as the program passed them: a caller's tensor is that very object.

        In a backward context the forward operator's: leaves that require a gradient (parameters), other tensors as far
        as they are still alive, else None.

        Raises:
            amanda.Error: the analysis routine has returned.
        """
        return self._handle.inputs()

    def get_outputs(self) -> tuple[Any, ...] | None:
        """The outputs, in a ``require_outputs`` analysis; else None. In a backward context as `get_inputs`.

        Raises:
            amanda.Error: the analysis routine has returned.
        """
        return self._handle.outputs()

    def get_backward_op(self) -> _core.Operator | None:
        """The backward operator, an autograd node: its ``__name__`` is "ConvolutionBackward0". None in a forward context.

        Callable by a routine while that operator runs: ``backward_op(*grad_outputs)`` runs the original and returns its
        grad_inputs.
        """
        return self._handle.backward_op()

    def get_backward_op_id(self) -> int | None:
        """The backward operator's id: its forward operator's place, and which of its backward operators it is."""
        return self._handle.backward_op_id()

    def get_grad_outputs(self) -> tuple[Any, ...] | None:
        """Gradients of the outputs: one for each output of the node, None where undefined. None in a forward context.

        Raises:
            amanda.Error: the analysis routine has returned.
        """
        return self._handle.grad_outputs()

    def get_grad_inputs(self) -> tuple[Any, ...] | None:
        """Gradients of the inputs, in a ``require_outputs`` backward analysis: one for each of the node's
        ``next_functions``, None where undefined. Else None.

        Raises:
            amanda.Error: the analysis routine has returned.
        """
        return self._handle.grad_inputs()

    def is_forward(self) -> bool:
        return self._handle.is_forward()

    def is_backward(self) -> bool:
        return not self.is_forward()

    op = property(get_op)
    op_id = property(get_op_id)
    inputs = property(get_inputs)
    outputs = property(get_outputs)
    backward_op = property(get_backward_op)
    backward_op_id = property(get_backward_op_id)
    grad_outputs = property(get_grad_outputs)
    grad_inputs = property(get_grad_inputs)

    @property
    def namespace(self) -> str:
        """Framework, version and mode: "pytorch/2.13/eager"."""
        return self._handle.namespace()

    @property
    def module_path(self) -> str:
        """The module that runs, by its name in the model: "encoder.layer.3.attention". "" outside modules."""
        return self._handle.module_path()

    @property
    def source(self) -> str:
        """Where the user's code calls: "model.py:12"."""
        return self._handle.source()

    @property
    def is_recompute(self) -> bool:
        """Does a checkpointed region run again, for its backward pass?"""
        return self._handle.is_recompute()

    @property
    def is_symbolic(self) -> bool:
        """Are the operands symbols of a graph, not values? False in eager mode."""
        return self._handle.is_symbolic()

    @property
    def depth(self) -> int:
        """How many operators around this one the tool sees as well; above 0 only with ``nested=True``."""
        return self._handle.depth()

    @property
    def tool(self) -> Tool:
        """The tool whose analysis runs."""
        tool: Tool = self._handle.tool()
        return tool

    # ---- instrumentation --------------------------------------------------------------------------------------------

    def insert_before_op(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[int | str] | None = None,
        *,
        with_run: bool = False,
        differentiable: bool = False,
        allow_view: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_inputs, **kwargs)`` before the operator, each time it runs.

        Arguments:
            fn: returns None to keep the inputs, one value for the only selected position, or one for each. A value must
                have the type, dtype and device of what it stands for; None among several keeps that one.
            inputs: positions or names; None: all, []: none.
            with_run: passes ``run``, a dict shared by the tool's routines of one execution.
            differentiable: records the routine; else a value takes over the gradient edge of what it stands for.
            allow_view: `fn` may put another tensor in place of one that the operator's result is a view of, which ends
                their sharing of memory.
            kwargs: handed to `fn`.

        Raises:
            TypeError: `fn` cannot be called, or cannot take what it will be given; `inputs` is no list of positions and
                names; a keyword is a misspelt option.
            ValueError: the operator has no such position, or one is selected twice.
            amanda.Error: the analysis routine has returned.
        """
        inputs = _listed(inputs)
        action = self._handle.insert_before_op(fn, inputs, with_run, differentiable, allow_view, kwargs)
        return self._checked("insert_before_op", action, fn, inputs, with_run, kwargs)

    def insert_after_op(
        self,
        fn: Callable[..., Any],
        outputs: Sequence[int | str] | None = None,
        *,
        with_run: bool = False,
        differentiable: bool = False,
        allow_view: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_outputs, **kwargs)`` after the operator. As `insert_before_op`.

        Arguments:
            allow_view: `fn` may put another tensor in place of a view, which ends its sharing of memory.
        """
        outputs = _listed(outputs)
        action = self._handle.insert_after_op(fn, outputs, with_run, differentiable, allow_view, kwargs)
        return self._checked("insert_after_op", action, fn, outputs, with_run, kwargs)

    def replace_op(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[int | str] | None = None,
        *,
        with_run: bool = False,
        allow_view: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_inputs, **kwargs)`` instead of the operator; what it returns is the result.

        The replacement is the operator now: it runs in the program's gradient mode. ``context.get_op()`` called in it
        runs the original, or the replacement by a tool that this one depends on.

        Raises:
            amanda.Error: the operator returns a view and `allow_view` is not set.
        """
        inputs = _listed(inputs)
        action = self._handle.replace_op(fn, inputs, with_run, allow_view, kwargs)
        return self._checked("replace_op", action, fn, inputs, with_run, kwargs)

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

        In a forward context: before each backward operator that the forward operator makes and that has the selected
        positions (of leaves, AccumulateGrad, only a backward analysis can ask). Positions are the autograd node's:
        ``grad_outputs[i]`` belongs to its i-th output. An undefined gradient is None.

        Arguments:
            fn, with_run, kwargs: as of `insert_before_op`. A value must have the gradient's shape, dtype and device.
            grad_outputs: positions; None: all, []: none.
            differentiable: records the routine, under ``create_graph=True``.

        Raises:
            TypeError: as of `insert_before_op`.
            ValueError: the operator has no such position, or one is selected twice.
            amanda.Error: the analysis routine has returned.
        """
        grad_outputs = _listed(grad_outputs)
        action = self._handle.insert_before_backward_op(fn, grad_outputs, with_run, differentiable, kwargs)
        return self._checked("insert_before_backward_op", action, fn, grad_outputs, with_run, kwargs)

    def insert_after_backward_op(
        self,
        fn: Callable[..., Any],
        grad_inputs: Sequence[int] | None = None,
        *,
        with_run: bool = False,
        differentiable: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_grad_inputs, **kwargs)`` after the backward operator. As `insert_before_backward_op`.

        ``grad_inputs[i]`` flows along the node's ``next_functions[i]``. AccumulateGrad has none: after it, the leaf's
        ``.grad`` holds the gradient.
        """
        grad_inputs = _listed(grad_inputs)
        action = self._handle.insert_after_backward_op(fn, grad_inputs, with_run, differentiable, kwargs)
        return self._checked("insert_after_backward_op", action, fn, grad_inputs, with_run, kwargs)

    def replace_backward_op(
        self,
        fn: Callable[..., Any],
        grad_outputs: Sequence[int] | None = None,
        *,
        with_run: bool = False,
        **kwargs: Any,
    ) -> _core.Action:
        """Calls ``fn(*selected_grad_outputs, **kwargs)`` instead of the backward operator; what it returns are the
        grad_inputs, one for each of the node's ``next_functions`` (None: undefined).

        It takes effect at once: decided during a backward pass, the original does not run in that pass either.

        Raises:
            amanda.Error: the operator is AccumulateGrad.
        """
        grad_outputs = _listed(grad_outputs)
        action = self._handle.replace_backward_op(fn, grad_outputs, with_run, kwargs)
        return self._checked("replace_backward_op", action, fn, grad_outputs, with_run, kwargs)

    def may_mutate(self) -> None:
        """Lets the routines that this analysis schedules change, in place, tensors they were given."""
        self._handle.may_mutate()

    def _checked(
        self,
        method: str,
        action: _core.Action,
        fn: Callable[..., Any],
        positions: Sequence[int | str] | None,
        with_run: bool,
        kwargs: dict[str, Any],
    ) -> _core.Action:
        op = self._handle.op()
        names = op.input_names if method in ("insert_before_op", "replace_op") else ()
        try:
            routine_checks.check(
                method, getattr(self._handle.tool(), "name", "a tool"), op.name, names, fn, positions, with_run, kwargs
            )
        except BaseException:
            action.remove()
            raise
        return action


def _listed(positions: Any) -> Any:
    """A list, of an iterable that can be read once only; anything else as it is."""
    return list(positions) if isinstance(positions, Iterator) else positions


_core.set_context_class(OpContext)
