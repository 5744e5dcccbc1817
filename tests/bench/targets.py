"""The project's performance targets, and which of them a run reached."""

import statistics

from compiled_rows import NOBODY_ASKS
from configurations import BASELINE

LIMITS = [  # row, workload, the most that its ratio may be
    ("scope open, nobody asks", "torch.add", 1.005),
    ("filter on another operator", "BERT-base, forward", 1.005),
    ("nobody asks, after a filter that occurs", "torch.add", 1.03),
    ("the id alone (seen, nothing scheduled)", "torch.add", 1.08),
    ("C++ routine, forward", "torch.add", 1.13),
    ("Python routine, forward", "torch.add", 1.30),
    ("tools.profile", "torch.add", 1.60),
    ("C++ routine, forward", "transformer layer, train", 1.05),
    ("Python routine, forward", "transformer layer, train", 1.08),
    ("C++ routine, forward and backward", "transformer layer, train", 1.12),
    ("Python routine, forward and backward", "transformer layer, train", 1.22),
    ("tools.profile", "transformer layer, train", 1.15),
    ("tools.nonfinite", "transformer layer, train", 1.30),
    ("tools.cuts", "transformer layer, train", 1.30),
    ("tools.check", "transformer layer, train", 1.30),
    ("tools.inplace", "transformer layer, train", 1.30),
    ("tools.inplace, only what writes", "transformer layer, train", 1.15),
    ("tools.trace, a constant at each linear", "transformer layer, train", 1.05),
    ("C++ routine, forward", "decode", 1.08),
    ("Python routine, forward", "decode", 1.17),
    ("Python routine, forward and backward", "BERT-base, train", 1.01),
    ("Python routine, forward and backward", "ResNet-50, train", 1.01),
]
SHARES = [  # row, peer, workload, the most that the row may add as a share of what the peer adds
    ("C++ routine, forward", "TorchDispatchMode, counts", "torch.add", 1 / 10),
    ("C++ routine, forward", "TorchFunctionMode, counts", "torch.add", 1 / 3),
    ("Python routine, forward", "TorchDispatchMode, counts", "torch.add", 1 / 10),
    ("Python routine, forward", "TorchFunctionMode, counts", "torch.add", 1 / 3),
]
COMPILED_LIMITS = {  # the most that a row's ratio may be, in each compiled program
    "scope open, nobody asks": 1.00,
    "C++ routine that looks, each linear, forward and backward": 1.01,
    "C++ routine that looks, every operator, forward and backward": 1.03,
    "C++ routine that may edit, result of each linear": 1.05,
    "Python routine that looks, each linear, forward and backward": 1.15,
    "traceable mask, weight of each linear": 1.03,
}
FIRST_STEP_LIMITS = {"C++ routine that looks, every operator, forward and backward": 1.25}  # the others': 1.1


def compiled_rows(results):
    """As `rows`, for the programs that torch.compile compiled."""
    for result in results:
        noise = spread(result["ratios"][BASELINE])
        for row, limit in COMPILED_LIMITS.items():
            values = result["ratios"][row]
            yield f"{result['workload']}: {row}", f"{limit:.2f}", *judged(values, limit, noise)
        for row in COMPILED_LIMITS:
            times = result["first_s"][row] / result["first_s"][NOBODY_ASKS]
            limit = FIRST_STEP_LIMITS.get(row, 1.1)
            met = verdict(times <= limit)
            yield f"{result['workload']}, first step: {row}", f"{limit:.2f}", f"{times:.2f}", met


def rows(results):
    """Target, limit, what was measured, and whether it is met: "yes", "no", or "noise" if it is within the spread."""
    found = {(r["workload"], name): values for r in results for name, values in r["ratios"].items()}
    noise = {r["workload"]: spread(r["ratios"][BASELINE]) for r in results}
    for row, workload, limit in LIMITS:
        values = found.get((workload, row))
        target = f"{workload}: {row}"
        if values:
            yield target, f"{limit}", *judged(values, limit, noise[workload])
        else:
            yield target, f"{limit}", "not measured", ""
    for row, peer, workload, limit in SHARES:
        target = f"{workload}: what is added by {row} / by {peer.partition(',')[0]}"
        if (workload, row) in found and (workload, peer) in found:
            ours, theirs = (statistics.median(found[workload, name]) - 1 for name in (row, peer))
            yield target, f"{limit:.2f}", f"{ours / theirs:.2f}", verdict(ours <= limit * theirs)
        else:
            yield target, f"{limit:.2f}", "not measured", ""


def judged(values, limit, noise):
    middle = statistics.median(values)
    doubt = abs(middle - limit) <= max(noise, spread(values))
    return f"{middle:.3f}", "noise" if doubt else verdict(middle <= limit)


def verdict(met):
    return "yes" if met else "no"


def spread(values):
    """Half of what lies between the first and the third quartile."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
