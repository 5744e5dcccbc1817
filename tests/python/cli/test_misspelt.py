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
