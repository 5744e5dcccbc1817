"""Names of objects, as the program writes them: "trainer.losses[*]", and of which variable that is a part."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from amanda.toolkit.frames import short_line

from . import kinds
from .edges import GENERATORS, gradient, is_node
from .variables import variables_of

LONGEST = 80  # characters of a text: a chain of objects goes on for as many as there are
MOST_KEYS = 32  # of a dict whose keys are named
_DIGITS = re.compile(r"\d+")
_PARTS = {"_modules": "", "_parameters": "parameter", "_buffers": "buffer"}
_HOOKS = re.compile(r"_\w*hooks")


class Name(NamedTuple):
    """An object, by the way to it from a variable."""

    text: str  # "trainer.losses[*]"
    where: str  # "global of train.py"
    kind: str = "tensor"  # see `LeakRow`
    saver: str = ""  # the node of a graph that has saved it
    owner: str = ""  # in place of `text`: the module, the optimizer, or the tensor with the graph that it is a part of
    role: str = ""  # what a dict or a function is, of which this is the name

    def __str__(self) -> str:
        """ "the graph of losses[*] (global of train.py)"."""
        return self._text(self._what)

    @property
    def pattern(self) -> str:
        """The same, with * for digits in names: objects that differ in these are one group."""
        return self._text(_DIGITS.sub("*", self._what))

    @property
    def _what(self) -> str:
        return self.text if self.kind == "tensor" else self.owner or self.text

    def _text(self, what: str) -> str:
        return f"{_OF[self.kind].format(what)} ({self.where})" if what else self.where


_OF: Mapping[str, str] = {
    "tensor": "{}",
    "parameter": "parameters of {}",
    "gradient": "gradients of {}",
    "buffer": "buffer {}",
    "optimizer state": "state of {}",
    "saved activation": "the graph of {}",
    "garbage": "{}",
    "unknown": "{}",
}


def child_of(name: Name, parent: Any, child: Any) -> Name:
    """The name of an object to which `parent` refers, whose name is given."""
    kind = type(parent)
    for fits, rule in _RULES:
        if fits(kind):
            return rule(name._replace(role=""), parent, child, name.role)
    return _of_object(name, parent, child, name.role)


def _of_dict(name: Name, parent: Any, child: Any, role: str) -> Name:
    if role in ("variables", "attributes", "class") or role.startswith(("module", "optimizer")):
        return _attribute(name, _key(parent, child, most=None) or "?", role)
    if role == "parts":
        name = name._replace(text=_longer(name.text, f".{_key(parent, child, most=None) or '?'}"))
        return name._replace(owner=name.text) if name.kind == "buffer" else name
    if role == "hooks":
        return name
    key = _key(parent, child, most=MOST_KEYS)
    return name._replace(text=_longer(name.text, "[*]" if key is None else f"[{key!r}]"))


def _attribute(name: Name, key: str, role: str = "attributes") -> Name:
    if role == "variables":
        return name._replace(text=key)
    if role == "module" and key in _PARTS:
        return name._replace(role="parts", kind=_PARTS[key] or name.kind, owner=name.owner or name.text)
    if role.startswith("optimizer") and key == "state":
        owner = f"{name.text}, {role.removeprefix('optimizer ')}"
        return name._replace(text=f"{name.text}.state", owner=owner, kind="optimizer state")
    if _HOOKS.fullmatch(key):
        return name._replace(text=_hook(name, key.strip("_").replace("_", " ").removesuffix("s")), role="hooks")
    return name._replace(text=_longer(name.text, f".{key}"))


def _hook(name: Name, kind: str) -> str:
    return f"({kind} of {name.text})"


def _of_list(name: Name, parent: Any, child: Any, role: str) -> Name:
    return name._replace(text=_longer(name.text, "[*]"))


def _of_object(name: Name, parent: Any, child: Any, role: str) -> Name:
    attributes, kind = _attributes_of(parent), type(parent)
    role = "module" if kinds.MODULE in kind.__mro__ else "attributes"
    if kinds.OPTIMIZER in kind.__mro__:
        role = f"optimizer {kind.__name__}"
    if child is attributes:
        return name._replace(role=role)
    key = _key(attributes, child, most=None) or _slot(parent, child)
    return _attribute(name, key, role) if key else name._replace(text=_longer(name.text, "…"))


def _of_class(name: Name, parent: Any, child: Any, role: str) -> Name:
    return name._replace(role="class") if type(child) is dict else name


def _of_function(name: Name, parent: Any, child: Any, role: str) -> Name:
    code = parent.__code__
    for variable, cell in zip(code.co_freevars, parent.__closure__ or (), strict=False):
        if cell is child:
            return _inside(name, f"closure of {place_of(code)}", variable, known_as=parent.__name__)
    if child is parent.__defaults__ or child is parent.__kwdefaults__:
        return _inside(name, f"of {place_of(code)}", "defaults", known_as=parent.__name__)
    return name._replace(role="attributes") if type(child) is dict else name


def _inside(name: Name, where: str, text: str, what: str = "that is", known_as: str = "") -> Name:
    """A variable of something that has a way of its own."""
    if name.text in ("", known_as) or len(name.where) > LONGEST:
        return Name(text, where)
    of = f"a {name.text[1:-1]}" if name.text.startswith("(") and name.text.endswith(")") else f"{what} {name.text}"
    return Name(text, f"{where}, {of}, {name.where}")


def _same(name: Name, parent: Any, child: Any, role: str) -> Name:
    return name._replace(role=role)


def _of_method(name: Name, parent: Any, child: Any, role: str) -> Name:
    return name._replace(text=_longer(name.text, ".__self__")) if child is parent.__self__ else name


def _of_cache(name: Name, parent: Any, child: Any, role: str) -> Name:
    if child is getattr(parent, "__wrapped__", None) or name.where.startswith("of the lru_cache"):
        return name
    return Name("results", f"of the lru_cache {name.text}, {name.where}")


def _of_frame(name: Name, parent: Any, child: Any, role: str) -> Name:
    if type(child) is types.FrameType:
        return name
    variable = _key(variables_of(parent) or _NOTHING, child, most=None) or "a variable"
    if role == "local":
        return name._replace(text=variable)
    what = "in the traceback of" if role == "traceback" else "which is run by"
    return _inside(name, f"local of {place_of(parent.f_code)}", variable, what)


def _of_exception(name: Name, parent: Any, child: Any, role: str) -> Name:
    if child is parent.__traceback__:
        return name
    for link in ("__cause__", "__context__"):
        if child is getattr(parent, link):
            return name._replace(text=_longer(name.text, f".{link}"))
    return _of_object(name, parent, child, role)


def _of_traceback(name: Name, parent: Any, child: Any, role: str) -> Name:
    return name._replace(role="traceback")


def _of_tensor(name: Name, parent: Any, child: Any, role: str) -> Name:
    if is_node(type(child)):
        return name._replace(kind="saved activation", owner=name._what)
    if kinds.TENSOR in type(child).__mro__:
        if child is not gradient(parent):
            return name
        return name._replace(kind="gradient", text=_longer(name.text, ".grad"), owner=name._what)
    if child is _attributes_of(parent):
        return name._replace(role="attributes")
    return name._replace(text=_hook(name, "hook"), role="hooks") if issubclass(type(child), dict) else name


def _of_node(name: Name, parent: Any, child: Any, role: str) -> Name:
    if child is _attributes_of(parent):  # of the context of an autograd.Function
        return name._replace(role="attributes")
    return name._replace(saver=type(parent).__name__)


def _of_array(name: Name, parent: Any, child: Any, role: str) -> Name:
    return name if child is parent.base else name._replace(text=_longer(name.text, "[*]"))


def place_of(code: types.CodeType) -> str:
    """ "main(), train.py:12"."""
    line = short_line(f"{code.co_filename}:{code.co_firstlineno}")
    return f"{getattr(code, 'co_qualname', code.co_name).replace('<locals>.', '')}(), {line}"


def _longer(text: str, segment: str) -> str:
    """`segment` again and again, as of a linked list, is written once, with "…"."""
    if len(text) + len(segment) > LONGEST:
        return text if text.endswith("…") else text + "…"
    if text.endswith(f"{segment}…"):
        return text
    return f"{text}…" if segment != "[*]" and text.endswith(segment) else text + segment


def _key(mapping: Mapping[Any, Any], child: Any, most: int | None) -> Any:
    if most is not None and len(mapping) > most:
        return None
    return next((key for key, value in mapping.items() if value is child and isinstance(key, str)), None)


_NOTHING: dict[str, Any] = {}


def _attributes_of(thing: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(thing, "__dict__")
    except (AttributeError, TypeError):
        return _NOTHING
    return found if type(found) is dict else _NOTHING


def _slot(thing: Any, child: Any) -> str:
    for kind in type(thing).__mro__:
        for key, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    if member.__get__(thing) is child:
                        return key
                except AttributeError:
                    continue
    return ""


def _is(*kinds: type) -> Any:
    return lambda kind: issubclass(kind, kinds)


def _is_cache(kind: type) -> bool:
    return kind is functools._lru_cache_wrapper or kind.__name__ == "_lru_list_elem"


_RULES = (
    (_is_cache, _of_cache),
    (_is(kinds.TENSOR), _of_tensor),
    (is_node, _of_node),
    (_is(dict), _of_dict),
    (_is(list, tuple, set, frozenset), _of_list),
    (lambda kind: kind.__name__ == "deque", _of_list),
    (_is(types.FunctionType), _of_function),
    (_is(types.CellType, types.MappingProxyType, *GENERATORS), _same),
    (_is(types.MethodType, types.BuiltinFunctionType), _of_method),
    (_is(types.FrameType), _of_frame),
    (_is(types.TracebackType), _of_traceback),
    (_is(BaseException), _of_exception),
    (_is(type), _of_class),
    (lambda kind: kind.__module__ == "numpy" and kind.__name__ == "ndarray", _of_array),
)
