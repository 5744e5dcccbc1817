"""Source code beside what its lines cost: what is listed, and how terminals, notebooks and pages show it."""

import sysconfig

import amanda
import pytest
import rich.console
import torch
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.profile import Profile

CODE = """\
import torch


def step(x):
    hidden = x.sin()
    # <b>two</b> & more
    y = hidden.cos()
    return y.sum()


unused = 1
def last(x):
    return x
"""


def module_at(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CODE)
    names = {}
    exec(compile(CODE, str(path), "exec"), names)
    return names


def profiled(*steps):
    profile = Profile(backward=True)
    with amanda.apply(profile):
        for _ in range(4):
            for step in steps:
                step(torch.ones(500, requires_grad=True)).backward()
    return profile


@pytest.fixture
def listed(tmp_path):
    """A profile of a module of its own, and that module's path."""
    path = tmp_path / "models" / "net.py"
    return profiled(module_at(path)["step"]), path


def code_of(listing):
    return [line.partition(" │")[2][1:] for line in str(listing).splitlines()[2:]]


def test_a_listing_has_the_code_beside_the_rows_by_line(listed):
    profile, path = listed
    heading, head, *lines = str(profile.annotate("models/net.py", context=1)).splitlines()
    rows = {row.name: row for row in profile.rows("line")}
    assert heading.startswith(f"{path}: ")
    assert head.split() == ["line", "calls", "forward", "ms", "backward", "ms", "share", "output", "MB", "│", "source"]
    code = [line.partition(" │")[2].strip() for line in lines]
    assert code == ["", *(line.strip() for line in CODE.splitlines()[3:9]), ""], "one line around those with rows"
    row = rows[f"{path}:7"]
    shown = next(line for line in lines if "hidden.cos()" in line).split("│")[0].split()
    milli = [f"{ns / 1e6:.2f}" for ns in (row.forward_ns, row.backward_ns)]
    assert shown == ["7", "4", *milli, f"{row.share:.1%}", "0.01"]
    assert next(line for line in lines if "two" in line).split("│")[0].split() == ["6"]
    assert code_of(profile.annotate(path, context=None)) == CODE.splitlines()


def test_all_files_of_the_user_are_listed_the_hottest_first(listed):
    profile, path = listed
    totals = {}
    for row in profile.rows("line"):
        file = row.source.rpartition(":")[0]
        totals[file] = totals.get(file, 0) + row.total_ns
    assert [file.path for file in profile.annotate().files] == sorted(totals, key=totals.get, reverse=True)
    assert set(totals) == {str(path), __file__}


@pytest.mark.parametrize("folder", ["lib/python3/site-packages/net", sysconfig.get_paths()["stdlib"] + "/net"])
def test_what_a_library_calls_is_at_the_users_line_and_where_asked_for_at_its_own(tmp_path, folder):
    path = tmp_path / folder
    if path.is_relative_to(tmp_path):
        names = module_at(path)
    else:  # nothing is written there
        names = {}
        exec(compile(CODE, str(path), "exec"), names)
    profile = profiled(names["step"])
    library = [row for row in profile.rows("line") if row.source.startswith(f"{path}:")]
    assert len(library) == 3
    (own,) = profile.rows("user_line")
    assert own.source.startswith(f"{__file__}:")
    assert own.share == pytest.approx(1)
    assert own.calls == 4 * (1 + 3 + 1), "ones, those of the library, and the ones_like of backward()"
    assert own.backward_ns == sum(row.backward_ns for row in library) > 0
    listing = profile.annotate()
    assert [file.path for file in listing.files] == [__file__]
    assert listing.remark == ""
    assert {file.path for file in profile.annotate(libraries=True).files} == {__file__, str(path)}
    assert [file.path for file in profile.annotate(path.name).files] == [str(path)]


def test_a_tool_without_rows_by_user_line_sums_up_libraries(tmp_path):
    path = tmp_path / "site-packages" / "net.py"
    step, profiler = module_at(path)["step"], CuptiProfiler(gpu=False)
    with amanda.apply(profiler):
        step(torch.ones(500, requires_grad=True)).backward()
    rows = [row for row in profiler.rows("line") if row.source.startswith(f"{path}:")]
    listing = profiler.annotate()
    assert [file.path for file in listing.files] == [__file__]
    assert listing.remark.startswith(f"not listed: {sum(row.host_ns for row in rows) / 1e6:.2f} ms on the host (")
    share = sum(row.share for row in rows)
    assert f", {share:.1%}, in installed packages, most in {rows[0].source} (" in listing.remark
    assert str(listing).endswith("libraries=True lists them")


def test_a_tool_that_saw_nothing_says_so():
    assert str(Profile().annotate()) == "no operator was called"


def test_where_only_libraries_have_rows_they_are_listed(tmp_path):
    path = tmp_path / "site-packages" / "net.py"
    step, x, profiler = module_at(path)["step"], torch.ones(500), CuptiProfiler(gpu=False)
    with amanda.apply(profiler):
        step(x)
    listing = profiler.annotate()
    assert [file.path for file in listing.files] == [str(path)]
    assert listing.remark == ""


def test_a_listing_of_code_that_cannot_be_read_has_the_numbers():
    names = {}
    exec("def f(x):\n    return x.sin()\n", names)
    profile = Profile()
    with amanda.apply(profile):
        names["f"](torch.ones(3))
    lines = str(profile.annotate("<string>")).splitlines()
    assert lines[1].endswith("│ (source not available)")
    assert lines[2].split()[:2] == ["2", "1"]


def test_a_terminal_cuts_long_lines_and_does_not_fold_them(listed):
    profile, path = listed
    listing = profile.annotate(path)
    console = rich.console.Console(width=60, no_color=True)
    with console.capture() as captured:
        console.print(listing)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 60
    assert len(lines) == len(str(listing).splitlines())
    assert any(line.endswith("…") for line in lines)


def test_a_notebook_shows_the_code_as_text(listed):
    profile, path = listed
    assert "&lt;b&gt;two&lt;/b&gt; &amp; more" in profile.annotate(path)._repr_html_()
    assert repr(profile.annotate(path)) == f"<amanda listing: {path}>"


def test_a_page_has_the_summary_the_tables_and_the_code(listed, tmp_path):
    profile, _ = listed
    profile.write_html(tmp_path / "page.html", title="One step")
    page = (tmp_path / "page.html").read_text()
    for text in ("One step", "Lines", "Modules", "Operator types", "Operators", "hidden = x.sin()", "aten::cos"):
        assert text in page
    assert "# &lt;b&gt;two&lt;/b&gt; &amp; more" in page
    total, backward = (sum(getattr(row, f) for row in profile.rows()) / 1e6 for f in ("total_ns", "backward_ns"))
    assert f"{total:.2f} ms ({backward:.2f} of them backward) in operators, from 4 lines" in page
    assert "rgb(var(--hot) / 0.450)" in page, "the hottest line"


def test_wrong_arguments_of_a_listing(listed, says):
    profile, path = listed
    with pytest.raises(
        ValueError, match=r"\[profile\] file= 'other.py': no operator was called there; these files have"
    ):
        profile.annotate("other.py")
    for context, error in ((-1, ValueError), ("3", TypeError)):
        text = f"[profile] context= is how many lines to show around those with rows, 0 or more, got {context!r}"
        with says(error, text):
            profile.annotate(path, context=context)


def test_a_name_of_several_files_is_refused(tmp_path):
    steps = [module_at(tmp_path / folder / "net.py")["step"] for folder in ("a", "b")]
    profile = profiled(*steps)
    with pytest.raises(ValueError, match=r"file= 'net.py': several files have such a path: .*/a/net.py"):
        profile.annotate("net.py")
    assert [file.path for file in profile.annotate("a/net.py").files] == [str(tmp_path / "a" / "net.py")]
