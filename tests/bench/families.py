"""Which operators module hooks reach, in six families of models: `amanda.tools.hook_coverage` on a train step of each."""

import models
import process


def coverage():
    """Runs in a process of its own."""
    process.prepare()
    import amanda
    from amanda.tools.hook_coverage import HookCoverage

    rows = []
    for name, model, inputs in models.six_families():
        tool = HookCoverage(model.train())
        with amanda.apply(tool):
            model(**inputs)["loss"].backward()
        rows.append({"model": name, "phases": {row.phase: vars(row) for row in tool.rows()}})
    return rows
