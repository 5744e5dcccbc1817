"""The tools that ship, and what their analysis costs if it is done every time: with the cache on and off."""

import importlib
import inspect
import pkgutil
import statistics

import process
import workloads

WORKLOAD = "transformer layer, train"


def coverage(kind, body):
    return kind(body.model)


def mapping(kind, body):
    """A mapping, and a tool that asks for everything: alone it does nothing."""
    import amanda

    tool = amanda.Tool("dependent")
    tool.depends_on(kind(rules=[["pytorch", lambda context: context.update(op_name=context.op.__name__)]]))
    tool.add_inst_for_op(lambda context: context["op_name"])
    tool.add_inst_for_op(lambda context: context["op_name"], backward=True)
    return tool


def trace(kind, body):
    return kind("linear: output.abs().max()")


MADE_BY = {"HookCoverage": coverage, "MappingTool": mapping, "Trace": trace}  # others that need arguments are left out


def shipped_tools():
    """The classes of tools, with their names from `amanda` on."""
    import amanda.research

    kinds = {}  # where each is found first: a tool of several modules has a public one
    for module in (
        *pkgutil.iter_modules(amanda.tools.__path__, "amanda.tools."),
        *pkgutil.iter_modules(amanda.research.__path__, "amanda.research."),
    ):
        if module.name.rpartition(".")[2].startswith("_"):
            continue
        names = vars(importlib.import_module(module.name))
        for kind in names.values():
            if not inspect.isclass(kind) or not issubclass(kind, amanda.Tool) or issubclass(kind, amanda.StepTool):
                continue  # tools that work step by step have scopes of their own
            if kind.__module__.startswith(("amanda.tools.", "amanda.research.")):
                kinds.setdefault(kind, f"{module.name.removeprefix('amanda.')}.{kind.__name__}")
    bases = {base for kind in kinds for base in kind.__mro__[1:]}  # for tools of one's own
    shipped = {kind: name for kind, name in kinds.items() if not kind.__name__.startswith("_") and kind not in bases}
    return {kind: name for kind, name in shipped.items() if kind.__name__ in MADE_BY or not needs_arguments(kind)}


def needs_arguments(kind):
    parameters = inspect.signature(kind).parameters.values()
    return any(one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


def cache_costs(settings):
    """Per shipped tool the ratios to the baseline, with the cache on and off. Runs in a process of its own."""
    process.prepare()
    import amanda

    body = next(w for w in workloads.WORKLOADS if w.name == WORKLOAD).make(False)
    body.run(3)
    rows = []
    for kind, name in shipped_tools().items():
        tool = MADE_BY.get(kind.__name__, lambda kind, body: kind())(kind, body)
        on, off = [], []
        with amanda.apply(tool):
            body.run(2)
        for _ in range(settings.rounds):
            scope = amanda.apply(tool)
            before = timed(body, settings)
            with scope:
                body.run(1)
                cached = timed(body, settings)
            with amanda.cache_disabled(), scope:
                body.run(1)
                uncached = timed(body, settings)
            beside = (before + timed(body, settings)) / 2
            on.append(cached / beside)
            off.append(uncached / beside)
        rows.append({"tool": name, "on": on, "off": off, "saved": statistics.median(off) / statistics.median(on)})
    return rows


def timed(body, settings):
    return process.best(body.run, 1, max(3, settings.repeats))
