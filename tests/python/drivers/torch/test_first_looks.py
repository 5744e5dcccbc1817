"""The results that routines see when an in-place operator runs for the first time."""

import amanda
import pytest
import torch


@pytest.mark.parametrize(
    "part",
    [
        lambda base: base[:, ::2],
        lambda base: base.T,
        lambda base: base[:, 0],
        lambda base: base[1:, 1:3],
        lambda base: base.as_strided((2, 3), (1, 2)),
    ],
)
def test_a_first_look_shows_the_results_strides(part, after):
    seen = []
    base = torch.randn(4, 6, requires_grad=True) * 1
    tensor = part(base)
    with amanda.apply(after("relu_", lambda y: seen.append((y.shape, y.stride(), y.tolist())))):
        for _ in range(2):
            tensor.relu_()
    assert seen == [(tensor.shape, tensor.stride(), tensor.tolist())] * 2


@pytest.mark.parametrize("edits", [False, True])
def test_a_trial_run_and_an_edited_run_show_a_copy_of_the_view(edits, after):
    seen = []

    def routine(y):
        seen.append((y.storage_offset(), y._is_view(), y.untyped_storage().nbytes(), y.tolist()))
        return y * 1 if edits else None

    base = torch.tensor([[-1.0, 2.0], [3.0, -4.0]], requires_grad=True) * 1
    with amanda.apply(after("relu_", routine)):
        for _ in range(3):
            base[1].relu_()
    copy, view = (0, False, 8, [3.0, 0.0]), (2, True, 16, [3.0, 0.0])
    assert seen == ([copy] * 3 if edits else [copy, view, view])
    assert base.tolist() == [[-1.0, 2.0], [3.0, 0.0]]


def test_a_run_without_recording_shows_the_view(after):
    seen = []
    base = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    with amanda.apply(after("relu_", lambda y: seen.append((y.storage_offset(), y._is_view())))):
        base[1].relu_()
    assert seen == [(2, True)]


def test_pytorchs_own_error_for_overlapping_elements_is_kept(after):
    x = (torch.ones(1, requires_grad=True) * 1).expand(3)
    with amanda.apply(after("relu_", lambda y: None)), pytest.raises(RuntimeError, match="more than one element of"):
        x.relu_()


def test_an_edit_inside_a_trial_run_remains(after):
    class Inner(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(lambda c: c.insert_after_op(lambda y: y + 5), ops="clamp_min_", nested=True)

    results = []
    with amanda.apply(Inner(), after("relu_", lambda y: None)):
        for _ in range(2):
            results.append(torch.relu_(torch.ones(2, requires_grad=True) * 1).tolist())
    assert results == [[6.0, 6.0]] * 2
