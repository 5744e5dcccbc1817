"""apply(..., check_writes=True): writes that change no version are found, each place once, and nothing else is."""

import copy
import re

import amanda
import numpy as np
import pytest
import torch
from amanda.tools.hidden_writes import checksum

nn = torch.nn


@pytest.fixture
def writes():
    """writes(program): what the check says of it, without the folder of this file."""

    def found(program, *tools, **options):
        with amanda.apply(*tools, check_writes=True, **options) as scope:
            program()
        return [re.sub(r"\(?[^ (]*test_hidden_writes.py:\d+\)?", "LINE", str(one)) for one in scope.hidden_writes()]

    return found


def leaf(*shape):
    return torch.ones(*shape or (4,), requires_grad=True)


OUTSIDE = "no operator wrote to it that this scope saw, so NumPy, a pointer, or a kernel outside of PyTorch did"
ALIAS = "this operator wrote to its memory: through x.data, or another tensor that does not share the version"


# ---- writes that no operator makes -----------------------------------------------------------------------------------


def test_a_write_through_numpy(writes):
    def program():
        y = torch.relu(torch.ones(4))
        y.numpy()[1] = 7
        torch.sigmoid(y)

    assert writes(program) == [
        "aten::sigmoid LINE, 'self' (shape (4,)): it has changed since aten::relu LINE made it, and its version is still "
        f"0: {OUTSIDE}"
    ]


def test_a_write_before_the_backward_pass(writes):
    def program():
        y = leaf().sigmoid()
        array, loss = y.detach().numpy(), y.sum()
        array[0] = 5
        loss.backward()

    assert writes(program) == [
        "SigmoidBackward0 of aten::sigmoid LINE, 'result' (shape (4,)): it has changed since aten::sigmoid LINE made it, "
        f"and its version is still 0: {OUTSIDE}"
    ]


def test_a_write_to_an_input_that_was_saved(writes):
    def program():
        x = leaf()
        loss = (x * x).sum()
        x.detach().numpy()[:] = 2
        loss.backward()

    (found,) = writes(program)
    assert found.startswith("MulBackward0 of aten::mul LINE, ")
    assert "it has changed since aten::mul LINE read it" in found


def test_elements_that_change_places(writes):
    def program():
        y = torch.relu(torch.arange(4.0))
        y.numpy()[:] = y.numpy()[::-1].copy()
        torch.relu(y)

    assert len(writes(program)) == 1


def test_inference_mode_has_no_versions(writes):
    def program():
        with torch.inference_mode():
            x = torch.relu(torch.ones(4))
            x.add_(1)
            torch.relu(x)
            x.numpy()[0] = 4
            torch.relu(x)

    (found,) = writes(program)
    assert "and it has no version: no operator wrote to it" in found


def test_a_write_to_memory_that_numpy_owns(writes):
    array = np.ones(4, dtype=np.float32)

    def program():
        x = torch.from_numpy(array)
        torch.relu(x)
        array[0] = 2
        torch.relu(x)

    assert len(writes(program)) == 1


# ---- writes by operators ---------------------------------------------------------------------------------------------


def test_a_write_through_data_to_a_result(writes):
    def program():
        y = leaf().sigmoid()
        y.data.mul_(2)
        y.sum().backward()

    text = f"aten::mul_ LINE, 'self' (shape (4,)): aten::sigmoid LINE made it, its version is still 0, and {ALIAS}"
    assert writes(program) == [text]


def test_an_optimizer_that_writes_through_data_is_told_once_per_place(writes):
    model = nn.Linear(4, 2)

    def program():
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            for parameter in model.parameters():
                parameter.data.sub_(parameter.grad, alpha=0.1)

    text = (
        "aten::sub_ LINE, 'self' (parameter 'weight', shape (2, 4)): aten::linear LINE read it, its version is still 1"
    )
    assert writes(program) == [f"{text}, and {ALIAS}"]


def test_data_that_is_replaced(writes):
    layer = nn.Linear(2, 2)

    def program():
        for _ in range(3):
            layer(torch.ones(1, 2))
            layer.weight.data = layer.weight.data * 2

    assert writes(program) == [
        "aten::linear LINE, 'weight' (parameter 'weight', shape (2, 2)): since aten::linear LINE read it, it was given "
        "other memory with other values, by x.data = ..., and its version is still 1"
    ]


@pytest.fixture(scope="module")
def library():
    library = torch.library.Library("amanda_hidden_writes", "DEF")
    library.define("silent(Tensor x) -> Tensor")
    library.define("declared(Tensor(a!) x) -> Tensor")

    def write(x):
        x.numpy()[0] += 1
        return x + 1

    library.impl("silent", write, "CPU")
    library.impl("declared", write, "CPU")
    yield torch.ops.amanda_hidden_writes
    library._destroy()


def test_a_kernel_that_does_not_declare_its_write(writes, library):
    def program():
        x = torch.ones(4)
        for _ in range(2):
            library.silent(x)
        torch.relu(x)

    assert writes(program) == [
        "amanda_hidden_writes::silent LINE, 'x' (shape (4,)): the operator wrote to it, its version is still 0, and the "
        "operator's schema says that it only reads it; name it in mutates_args"
    ]


def test_a_kernel_that_declares_its_write(writes, library):
    def program():
        x = torch.ones(4)
        library.declared(x)
        torch.relu(x)

    assert writes(program) == []


# ---- no false alarms -------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2)
        self.lstm, self.head = nn.LSTM(36, 8, 2, dropout=0.1), nn.Linear(8, 5)

    def forward(self, x):
        x = self.drop(torch.relu_(self.norm(self.conv(x))))
        return self.head(self.lstm(x.flatten(2))[0])


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}])
def test_training_has_no_hidden_writes(writes, optimizer, options):
    def train(model):
        torch.manual_seed(0)
        steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01, **options)
        for i in range(3):
            steps.zero_grad(set_to_none=i % 2 == 0)
            model(torch.randn(2, 3, 8, 8)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
        return [parameter.detach() for parameter in model.parameters()]

    model = Net()
    other = copy.deepcopy(model)
    results = []
    assert writes(lambda: results.append(train(model))) == []
    assert all(map(torch.equal, results[0], train(other)))  # to the bit


def legal_writes():
    x = leaf()
    with torch.no_grad():
        x.add_(1)
    z = torch.relu(x) + 1
    z.mul_(2)
    z[0] = 3
    z[1:].zero_()
    torch.relu_(z)
    (z.sum() + x.data.sum()).backward()
    x.grad.zero_()
    x.sigmoid().sum().backward()
    torch.stack([x.grad, x.data]).sum()


def first_values():
    x = torch.empty(4)
    x.numpy()[:] = 0
    torch.relu(x)


def moved():
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2))
    layer.double()(torch.ones(1, 2, dtype=torch.double))


def checkpointed():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    scaler, steps = torch.amp.GradScaler("cpu"), torch.optim.AdamW(layer.parameters())
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.utils.checkpoint.checkpoint(layer, torch.randn(2, 5, 8), use_reentrant=False).sum()
        scaler.scale(loss).backward()
        scaler.step(steps)
        scaler.update()


def transformed():
    torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.ones(3, 2))


@pytest.mark.parametrize("program", [legal_writes, first_values, moved, checkpointed, transformed])
def test_these_write_openly(writes, program):
    assert writes(program) == []


def test_tools_see_and_edit_as_without_it(writes):
    def program(results):
        results.append(nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).relu())

    edit = amanda.Tool("edit")
    edit.add_inst_for_op(lambda c: c.insert_after_op(lambda y: y * 2), ops="relu")
    alone, checked = [], []
    with amanda.apply(edit):
        program(alone)
    assert writes(lambda: program(checked), edit) == []
    assert torch.equal(alone[0], checked[0])


# ---- what it keeps, and what it says ---------------------------------------------------------------------------------


def test_it_keeps_no_tensor_alive():
    import weakref

    with amanda.apply(check_writes=True):
        y = torch.relu(leaf())
        storage = weakref.ref(y)
        torch.sigmoid(y)
        del y
        assert storage() is None


def test_each_place_is_one_line_of_the_log(caplog):
    with amanda.apply(check_writes=True) as scope:
        for _ in range(3):
            y = torch.relu(torch.ones(4))
            y.numpy()[0] = 2
            torch.relu(y)
    assert caplog.messages == [f"[amanda] {one}" for one in scope.hidden_writes()]
    assert len(caplog.messages) == 1


def test_the_evidence_names_what_was_looked_at():
    counter = amanda.Tool("mine")
    counter.add_inst_for_op(lambda context: None, ops="relu")
    with amanda.apply(counter, check_writes=True, coverage=True) as scope:
        torch.relu(torch.ones(2)) + 1
        torch.relu(torch.ones(2).to_sparse())
    mine, check = scope.evidence()
    assert (mine.tool, mine.operators) == ("mine", 2)
    assert (check.tool, check.is_complete) == ("amanda", False)
    assert "a sparse tensor" in check.not_looked_at
    assert scope.coverage().row("aten::add").skipped == {"unasked": 1}  # coverage is that of the program's tools
    assert scope.describe().rows() == []


def test_arguments():
    with pytest.raises(ValueError, match=r"\[scope\] check_writes is True or False, got 1"):
        amanda.apply(check_writes=1)
    with pytest.raises(
        amanda.Error, match=r"does not check writes; make it with amanda.apply\(..., check_writes=True\)"
    ):
        amanda.apply(amanda.Tool()).hidden_writes()
    with amanda.scheduled(check_writes=True) as run:
        y = torch.relu(torch.ones(2))
        y.numpy()[0] = 3
        torch.relu(y)
        run.step()
    assert len(run.hidden_writes()) == 1


# ---- the checksum ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [checksum.on_cpu, checksum.on_device])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, (1 << 23) + 5])
def test_a_checksum_shows_changes_of_a_byte_and_exchanges(function, size):
    data = torch.arange(size, dtype=torch.int64).mul_(2654435761).bitwise_right_shift_(7).to(torch.uint8)
    before = function(data.untyped_storage())
    assert function(data.clone().untyped_storage()) == before
    for at in {0, size // 2, size - 1}:
        for bit in (1, 128):
            other = data.clone()
            other[at] ^= bit
            assert function(other.untyped_storage()) != before
    if size > 1:
        other = data.clone()
        other[0], other[-1] = data[0] + 1, data[-1] - 1
        assert function(other.untyped_storage()) != before
