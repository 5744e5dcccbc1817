"""cast-round-trip."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit.frameworks import is_tensorflow

from ..graph import inputs
from ..rule import Rule, operands


class CastRoundTrip(Rule):
    """A tensor is cast to another type, and back, and nothing computes between: two passes over memory, and digits are
    lost if the type between has fewer. Seen where autograd records, and in TensorFlow for floating-point types."""

    name = "cast-round-trip"
    sentence = "a tensor is cast back to the type that it had"
    fix = "leave out both casts, or compute in the type between"
    is_advice = True
    ops = ("to", "type_as", "_to_copy", "tensorflow::Cast")
    bad = """
        hidden = model[0](x)
        model[2](hidden.to(torch.bfloat16).float()).sum().backward()
    """
    good = """
        hidden = model[0](x)
        model[2](hidden.to(torch.bfloat16).relu().float()).sum().backward()
    """

    with_outputs = True

    def look(self, context: OpContext) -> None:
        if is_tensorflow(context):
            cast = inputs(context)[0]
            before = cast.inputs[0] if cast is not None and cast.kind == "Cast" else None
            if cast is not None and before is not None and before.is_trained:
                types = before.dtype, cast.dtype, context.outputs[0].dtype.name
                if types[0] == types[2] != types[1] and all("float" in one for one in types):
                    self.found_in(context, ", ".join(types))
            return
        cast, result = operands(context)["self"], context.outputs[0]
        before = _type_before(getattr(cast, "grad_fn", None))
        if before is not None and before != cast.dtype and result.dtype == before:
            self.found_in(context, f"{str(before)[6:]}, {str(cast.dtype)[6:]}, {str(result.dtype)[6:]}")


def _type_before(node: Any) -> Any:
    """The type of what this node has cast; None if it casts nothing."""
    if node is None or node.name() != "ToCopyBackward0":
        return None
    source, position = node.next_functions[0]
    metadata = getattr(source, "_input_metadata", ())
    return metadata[position].dtype if position < len(metadata) else None
