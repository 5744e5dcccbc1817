"""Coverage reports of scopes: nested, entered again, left in any order, failing; what a report prints."""

import dataclasses
import threading
from xml.etree import ElementTree

import amanda
import pytest
import torch
from amanda import _torch
from amanda.core.coverage.reasons import REASONS
from amanda.core.coverage.report import report_of
from amanda.driver import registry
from coverage_counts import everything, skipped, tool
from torch.nn import functional as F


def test_each_scope_counts_what_its_own_tools_are_shown():
    outer, inner = (amanda.apply(made, coverage=True) for made in (everything(), tool("addmm")))
    with outer:
        torch.sin(torch.ones(2))
        with inner:
            F.linear(torch.eye(2), torch.eye(2), torch.ones(2))
        torch.cos(torch.ones(2))
    assert _torch.record_callbacks() == 0
    assert outer.coverage().row("aten::linear").seen == 1
    assert outer.coverage().row("aten::addmm").skipped == {"inner": 1}
    assert inner.coverage().row("aten::linear").skipped == {"unasked": 1}
    assert inner.coverage().row("aten::addmm").seen == 1
    assert {row.operator for row in outer.coverage().rows} >= {"aten::sin", "aten::cos"}
    assert {row.operator for row in inner.coverage().rows}.isdisjoint({"aten::sin", "aten::cos"})


def test_an_outer_scope_that_does_not_count_is_left_alone():
    with amanda.apply(tool()) as outer, amanda.apply(tool("relu"), coverage=True) as inner:
        torch.relu(torch.ones(2))
    assert inner.coverage().row("aten::relu").seen == 1
    with pytest.raises(amanda.Error):
        outer.coverage()


def test_entered_twice_or_again_or_on_two_threads_it_counts_each_call_once():
    scope = amanda.apply(tool(), coverage=True)

    @scope
    def run():
        with scope:
            torch.sin(torch.ones(2))
        assert _torch.record_callbacks() == 2  # this thread's, and that of all threads

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert scope.coverage().row("aten::sin").seen == 2
    assert _torch.record_callbacks() == 0


def test_a_report_is_readable_inside_and_does_not_change():
    with amanda.apply(tool(), coverage=True) as scope:
        torch.sin(torch.ones(2))
        report = scope.coverage()
        torch.sin(torch.ones(2))
    assert (report.row("aten::sin").seen, scope.coverage().row("aten::sin").seen) == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.rows = ()
    with pytest.raises(TypeError):
        report.rows[0].skipped["inner"] = 1


class Raising(amanda.Tool):
    def __init__(self, name, enter=False, leave=False):
        super().__init__(name)
        self.enter, self.leave = enter, leave

    def on_enter(self):
        if self.enter:
            raise ValueError("at enter")

    def on_exit(self, error):
        if self.leave:
            raise ValueError("at exit")


@pytest.mark.parametrize("when", ["enter", "leave"])
def test_nothing_stays_registered_where_entering_or_leaving_raises(when):
    scope = amanda.apply(tool(), Raising("raising", **{when: True}), coverage=True)
    with pytest.raises(ValueError, match="at e"), scope:
        torch.sin(torch.ones(2))
    assert _torch.record_callbacks() == 0
    torch.cos(torch.ones(2))
    assert all(row.operator != "aten::cos" for row in scope.coverage().rows)


def test_nothing_stays_registered_where_the_program_or_an_operator_raises():
    scope = amanda.apply(everything(), coverage=True)
    with pytest.raises(RuntimeError), scope:
        torch.ones(2) @ torch.ones(3)
    assert _torch.record_callbacks() == 0
    assert scope.coverage().row("aten::matmul").seen == 1
    with scope:
        torch.sin(torch.ones(2))
    assert scope.coverage().row("aten::sin").seen == 1
    assert "lost" not in skipped(scope.coverage())


def test_scopes_left_in_another_order_or_inside_a_hook():
    first, second = (amanda.apply(tool(), coverage=True) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    torch.sin(torch.ones(2))
    second.__exit__(None, None, None)
    assert all(row.operator != "aten::sin" for row in first.coverage().rows)
    assert second.coverage().row("aten::sin").seen == 1

    x = torch.ones(2, requires_grad=True).exp()
    x.register_hook(lambda gradient: first.__exit__(None, None, None))
    first.__enter__()
    x.sum().backward()  # the engine puts the thread's state back
    torch.cos(torch.ones(2))
    assert all(row.operator != "aten::cos" for row in first.coverage().rows)
    with first:
        torch.cos(torch.ones(2))
    assert first.coverage().row("aten::cos").seen == 1
    assert _torch.record_callbacks() == 0


def test_without_the_flag_nothing_is_registered():
    with amanda.apply(everything()):
        torch.ones(2)  # until the first operator, the scope waits for one
        assert _torch.record_callbacks() == 0


# ---- words -----------------------------------------------------------------------------------------------------------


def test_errors_say_what_to_do(says, monkeypatch):
    with says(
        amanda.Error,
        "[scope] this scope does not count what its tools see; make it with amanda.apply(..., coverage=True)",
    ):
        amanda.apply(tool()).coverage()
    with says(ValueError, "[scope] coverage is True or False, got 'yes'"):
        amanda.apply(tool(), coverage="yes")
    monkeypatch.setattr(registry, "_loaded", [])
    monkeypatch.setattr(registry, "waiting", list)
    with says(
        amanda.Error,
        "[scope] coverage counts what PyTorch, TensorFlow or ONNX Runtime is asked for, and none of them is installed, or "
        "this build has no driver for it; apply the tools without coverage=True",
    ):
        amanda.apply(tool(), coverage=True)


def test_the_table():
    report = report_of(
        [("aten::add", False, 3, {"inner": 2, "unasked": 1}), ("aten::mm", False, 0, {"inner": 8}), ("Mm", True, 1, {})]
    )
    assert report.table(1) == "\n".join(
        [
            "forward: 14 dispatched, 3 seen, 11 skipped",
            "  operator   dispatched        seen  skipped",
            "  aten::add           6           3  1 unasked, 2 inner",
            "  and 1 more",
            "backward: 1 dispatched, 1 seen, 0 skipped",
            "  operator  dispatched        seen  skipped",
            "  Mm                 1           1",
            "skipped because",
            f"  unasked            1  {REASONS['unasked']}",
            f"  inner             10  {REASONS['inner']}",
        ]
    )
    assert "  aten::mm            8           0  8 inner\n" in str(report)
    assert report.total("forward").skipped == {"unasked": 1, "inner": 10}
    assert str(report_of([])) == "forward: nothing\nbackward: nothing"


def test_a_notebook_shows_a_report_as_a_table():
    report = report_of([("aten::<sin>", False, 1, {"inner": 2}), ("Mm", True, 1, {})])
    page = ElementTree.fromstring(report._repr_html_())
    assert [[cell.text or "" for cell in row] for row in page.iter("tr")] == [
        ["", "operator", "dispatched", "seen", "skipped"],
        ["forward", "aten::<sin>", "3", "1", "2 inner"],
        ["backward", "Mm", "1", "1", ""],
        ["all forward", "", "3", "1", "2 inner"],
        ["all backward", "", "1", "1", ""],
    ]
    assert page.findtext(".//caption") == f"inner: {REASONS['inner']}"
