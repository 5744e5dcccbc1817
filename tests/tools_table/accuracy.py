"""What a tool costs in accuracy, and what fine-tuning with it gets back."""

import concurrent.futures
import copy
import functools
import itertools
import multiprocessing
import os
import statistics
from typing import NamedTuple

import amanda
import cases
import tasks
import torch
from amanda.reports.progress import Progress
from markdown_page import table

NO_TOOL = cases.Case("no tool", "", lambda seed: amanda.Tool("nothing"))


class Score(NamedTuple):
    value: float
    equal: bool  # the predictions are those without a tool, to the bit


def predictions(case, task, seed):
    """Of the model in a scope of the tool, and after fine-tuning in that scope; None where there are none."""
    model, tool = copy.deepcopy(task.trained), case.make(seed)
    with amanda.apply(tool):  # one scope: what a tool has decided stays
        if case.calibrates:
            task.calibrate(model)
        applied = predict(case, task, model, tool)
        if not case.trains:
            return applied, None
        case.before_training(tool)
        torch.manual_seed(seed)  # the same batches for all
        task.fine_tune(model, case.parameters(tool), functools.partial(case.after_step, tool))
        return applied, predict(case, task, model, tool)


def predict(case, task, model, tool):
    case.before_scoring(tool)
    if case.twice:
        task.predict(model)
    return task.predict(model)


def scores(name, seed, effort, titles):
    """Two scores for no tool and for each case, applied and fine-tuned, on one model that is trained for all of them."""
    torch.set_num_threads(1)  # the tensors are small
    task = tasks.TASKS[name](seed, effort)
    plain = predictions(NO_TOOL, task, seed)
    found = [[Score(task.score(mine), False) for mine in plain]]
    for case in chosen(titles):
        pair = predictions(case, task, seed) if name in case.tasks else (None, None)
        found.append(
            [
                None if mine is None else Score(task.score(mine), torch.equal(mine, theirs))
                for mine, theirs in zip(pair, plain, strict=True)
            ]
        )
    return found


def chosen(titles):
    return [case for case in cases.CASES if case.title in titles]


def measured(titles, seeds, effort):
    """For each task the scores of every seed. Models are trained side by side, each on one core."""
    jobs = list(itertools.product(tasks.TASKS, seeds))
    workers = min(os.cpu_count() or 1, len(jobs))
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running = {job: pool.submit(scores, *job, effort, titles) for job in jobs}
        with Progress("training and scoring models", len(jobs), ticks=True) as progress:
            for done in concurrent.futures.as_completed(running.values()):
                done.result()  # raises at once what one has raised
                progress.advance()
        return {name: [running[name, seed].result() for seed in seeds] for name in tasks.TASKS}


def cell(found):
    """The mean over seeds and the standard deviation; "equal" if no prediction of any seed differs from no tool's."""
    if None in found:
        return ""
    if all(score.equal for score in found):
        return "equal"
    values = [score.value for score in found]
    spread = f" ±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def label(case):
    return case.tool if case is NO_TOOL else f"`{case.tool}`, {case.setting}"


def rows(titles, seeds, effort=1):
    """The table's rows of no tool and of the cases, by label."""
    by_task = measured(titles, seeds, effort)
    found = {}
    for index, case in enumerate([NO_TOOL, *chosen(titles)]):
        pairs = [zip(*(of_seed[index] for of_seed in of_seeds), strict=True) for of_seeds in by_task.values()]
        found[label(case)] = [cell(scores) for pair in pairs for scores in pair]
    return found


def markdown(found):
    """The table of these rows, in the order of the cases."""
    labels = [label(case) for case in [NO_TOOL, *cases.CASES] if label(case) in found]
    headings = ["", *(f"{name}, {when}" for name in tasks.TASKS for when in ("applied", "fine-tuned"))]
    return table(headings, [[label, *found[label]] for label in labels])


def kept(text):
    """The rows of a table that `markdown` made."""
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: [cell.strip() for cell in cells] for first, *cells in lines}
