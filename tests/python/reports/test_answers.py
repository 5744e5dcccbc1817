"""Many names in few words."""

import pytest
from amanda.reports.answers import folded

LAYERS = [f"encoder.layer.{i}.{part}" for i in range(3) for part in ("query", "key", "value", "out", "norm")]


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        ([], ""),
        (["", "head"], "head"),
        (["a", "b", "a"], "a, b"),
        (LAYERS[:1] + LAYERS[5:6], "encoder.layer.*.query"),
        (LAYERS, "encoder.layer.*"),
        ([*LAYERS, "head.weight"], "encoder.*, head.*"),
        ([*LAYERS, "temperature"], "encoder.*, temperature"),
        ([*LAYERS, "a", "b", "c", "d"], "encoder.layer.*.query and 8 more"),
    ],
)
def test_folded(paths, text):
    assert folded(paths) == text
