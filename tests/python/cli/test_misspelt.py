"""What is misspelt in a command line is refused with a suggestion."""

import pytest
from amanda.cli.main import main

MISTAKES = {
    "profil script.py": "invalid choice: 'profil' (choose from",
    "profile --bakward script.py": "unrecognized arguments: --bakward",
    "run -t profile --modles=0 script.py": "unrecognized arguments: --modles=0",
    "run -t nan --compiled grap script.py": "argument --compiled: invalid choice: 'grap' (choose from",
    "nan --action stop script.py": "unrecognized arguments: --action",
    "watch --quux script.py": "unrecognized arguments: --quux",
    "train.py --epochs 3": "invalid choice: 'train.py' (choose from",
}
MEANT = [
    "did you mean 'profile'?",
    "did you mean --backward?",
    "did you mean --modules?",
    "did you mean 'graph'?",
    "",
    "",
    "; a command comes before the program, as in amanda profile train.py",
]


@pytest.mark.parametrize(("line", "meant"), [*zip(MISTAKES, MEANT, strict=True)])
def test_a_suggestion(line, meant, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    assert stopped.value.code == 2
    text = " ".join(capsys.readouterr().err.split())
    assert MISTAKES[line] in text
    assert text.endswith(meant)
    assert ("did you mean" in text) == meant.startswith("did you mean")


AFTER = "comes after train.py, which gets it; options of amanda {0} come before it\n"


@pytest.mark.parametrize(
    ("script", "line", "note"),
    [
        ("", "profile train.py --by module", "amanda profile: --by " + AFTER.format("profile")),
        ("", "memory train.py --growth --top=3", "amanda memory: --growth " + AFTER.format("memory")),
        ("", "profile --by op train.py --epochs 3", ""),
        ("", "profile --by op train.py", ""),
        ("# parser.add_argument('--by')", "profile train.py --by module", ""),
        ("max_events: int = 3", "run -t profile train.py --max-events=4", ""),
        ("import sys; sys.argv", "profile train.py --by module", ""),
    ],
)
def test_an_option_after_a_script_is_the_script_s(script, line, note, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"{script}\nprint('it ran')\n")
    main(line.split())
    printed = capsys.readouterr()
    assert printed.err == note
    assert printed.out.startswith("it ran")
