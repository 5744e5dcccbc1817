"""scripts/plain_english.py finds what contributing.md asks writers to avoid, and nothing else."""

import runpy

import pytest
from repository import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "plain_english.py"))


def rules(text, code=True):
    return [one.rule for one in SCRIPT["findings"](SCRIPT["Text"]("file", 1, text, code))]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("What an operator does with its operands.", "begins with What"),
        ("Of one memory.", "begins with Of"),
        ("Each tool is told of its failures.", "told"),
        ("The table tells the two apart.", "told"),
        ("It runs beside the program.", "beside"),
        ("The plan; null: none.", "a legend"),
        ("Null: it is not known.", "a legend"),
        ("Is anything scheduled?", "a question"),
        ("Runs it. " + " ".join(["word"] * 36) + ".", "long"),
    ],
)
def test_each_rule_finds_its_sentence(text, rule):
    assert rules(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "The operands that an operator changes.",
        "None if there is none. True if the operator is known.",
        "Of course it runs.",
        "Runs `what()` and ``Of``, as in `null: none`.",
        "Raises:\n    ValueError: no such position.",
        "\n    amanda.Error: ".join(["Raises:", *[" ".join(["word"] * 20) + "."] * 2]),
        " ".join(["word"] * 35) + ". " + " ".join(["Word"] * 35) + ".",
    ],
)
def test_plain_sentences_pass(text):
    assert rules(text) == []


def test_a_page_may_ask_a_question():
    assert rules("Which operator wrote it?", code=False) == []


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("a.py", '"""What it is."""\n', ["begins with What"]),
        ("a.py", "x = 1  # what it is\n# Is it\n# known?\n", ["a question"]),
        ("a.py", 'x = "Is it known?"\n', []),
        ("a.py", '"""Code::\n\n    # What it is.\n\n    x()\n\nWhat it is."""\n', ["begins with What"]),
        ("a.h", "/// Is it\n/// known?\nbool known();  ///< null: no\n", ["a question", "a legend"]),
        ("a.md", "# What a title\n\nWhat is it?\n\n```text\nWhat code prints.\n```\n", []),
        ("a.md", "Text. What it\nprints is text.\n", ["begins with What"]),
    ],
)
def test_what_is_read_of_a_file(name, source, found, tmp_path, monkeypatch):
    monkeypatch.setitem(SCRIPT["texts"].__globals__, "ROOT", tmp_path)
    (tmp_path / name).write_text(source)
    texts = SCRIPT["texts"](tmp_path / name)
    assert [one.rule for text in texts for one in SCRIPT["findings"](text)] == found
