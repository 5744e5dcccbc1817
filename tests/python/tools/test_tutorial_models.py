"""Every tool that ships on the tutorial's models, forward and backward, over 20 training steps.

The architectures are ResNet-50's, BERT's and ALBERT's, whose layers are shared; only their widths are small.
"""

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
from amanda.research import LearnedStepQuantization
from amanda.research.effective_path import EffectivePath
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import ActivationPruning, CascadePruning, ChannelPruning, HeadPruning, TilewisePruning
from amanda.research.rematerialization import Rematerialization
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning, SparsitySchedule, VectorwisePruning
from amanda.tools.quantization import DynamicQuantization, FakeQuantization, StaticQuantization
from amanda.tools.rewriting import SubgraphRewriting
from amanda.tools.statistics import OpStatistics

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]  # the tensors are small

SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
IMAGES, TEXTS = {"pixel_values": (4, 3, 32, 32)}, {"input_ids": (4, 12)}


def resnet50():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32, 64, 128], depths=[3, 4, 6, 3], layer_type="bottleneck", num_labels=5
    )
    return transformers.ResNetForImageClassification(config)


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, num_labels=5))


def albert():
    config = transformers.AlbertConfig(**SMALL, embedding_size=16, num_labels=5, hidden_act="gelu")
    return transformers.AlbertForSequenceClassification(config)


MODELS = {"resnet50": (resnet50, IMAGES), "bert": (bert, TEXTS), "albert": (albert, TEXTS)}
ATTENTION = ["bert", "albert"]


def linear_gelu(linear, gelu):
    return F.gelu(linear.op(linear.input, linear.weight, linear.bias), approximate=gelu.approximate)


def inputs_of(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator)
        if len(shape) == 4
        else torch.randint(99, shape, generator=generator)
        for name, shape in shapes.items()
    }


def train(name, tool, steps=20):
    """Losses, and parameters and buffers at the end. No dropout: some tools draw random numbers."""
    make, shapes = MODELS[name]
    torch.manual_seed(0)
    model = make().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    scope, losses = amanda.apply(tool), []
    with scope:
        if isinstance(tool, (ChannelPruning, LearnedStepQuantization)):
            model(**inputs_of(shapes, 0))  # makes its parameters
    more = list(tool.parameters()) if isinstance(tool, (ChannelPruning, LearnedStepQuantization)) else []
    # Gates that were never trained make the scores large, and so the gradients.
    rate = 1e-8 if isinstance(tool, ChannelPruning) else 0.01
    optimizer = torch.optim.SGD([*model.parameters(), *more], rate)
    for step in range(steps):
        optimizer.zero_grad()
        with scope:
            losses.append(model(**inputs_of(shapes, step), labels=torch.arange(4)).loss)
            losses[-1].backward()
        optimizer.step()
    return model, [loss.detach() for loss in losses], [*model.state_dict().values()]


def plain(name):
    """Batch normalization counts one run more if a tool made its parameters in one; that is not compared."""
    return train(name, amanda.Tool("nothing"))


LOOK = [Profile, Flops, GraphTracing, OpStatistics, GradientStatistics, ValueHistograms, EffectivePath]


@pytest.mark.parametrize("make", [*LOOK, lambda: CuptiProfiler(gpu=False)], ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_tools_that_look_change_nothing(name, make):
    _, losses, state = train(name, make())
    _, expected_losses, expected = plain(name)
    assert all(map(torch.equal, losses + state, expected_losses + expected))


@pytest.mark.parametrize("name", MODELS)
def test_a_budget_of_memory_changes_nothing(name):
    _, expected_losses, expected = plain(name)
    unlimited = Rematerialization(1 << 40)
    train(name, unlimited, steps=2)
    tool = Rematerialization(unlimited.peak * 9 // 10)
    _, losses, state = train(name, tool)
    assert sum(row.recomputed for row in tool.rows()) > 0
    assert tool.peak <= tool.budget
    assert all(map(torch.equal, losses + state, expected_losses + expected))


EDIT = {
    "magnitude": (lambda: MagnitudePruning(0.5), MODELS),
    "magnitude by schedule": (lambda: MagnitudePruning(SparsitySchedule(initial=0.5, final=0.9, end=20)), MODELS),
    "vectorwise": (VectorwisePruning, MODELS),
    "tilewise": (lambda: TilewisePruning(0.5, tile=8), MODELS),
    "activation": (lambda: ActivationPruning(sparsity=0.5), MODELS),
    "channel": (ChannelPruning, ["resnet50"]),
    "cascade": (lambda: CascadePruning(0.75, 0.75), ATTENTION),
    "heads": (lambda: HeadPruning({0: [1], 3: [0, 2]}), ATTENTION),
    "fake quantization": (FakeQuantization, MODELS),
    "learned steps": (lambda: LearnedStepQuantization(bits=4), MODELS),
    "errors": (lambda: ErrorInjection(BitFlip(20), seed=0), MODELS),
    "rewriting": (lambda: SubgraphRewriting(["linear", "gelu"], linear_gelu), ATTENTION),
}


@pytest.mark.parametrize(
    ("name", "of"), [pytest.param(name, of, id=f"{of} on {name}") for of, (_, on) in EDIT.items() for name in on]
)
def test_tools_that_edit_train_and_leave_a_clean_model(name, of):
    tool = EDIT[of][0]()
    model, losses, _ = train(name, tool)
    assert all(loss.isfinite() for loss in losses)
    assert tool.rows()
    assert getattr(tool, "skipped", {}) == {}
    twin = MODELS[name][0]()
    twin.load_state_dict(model.state_dict())  # a model of its own, which no tool has seen
    x = inputs_of(MODELS[name][1], 99)
    with torch.no_grad():
        assert torch.equal(model.eval()(**x).logits, twin.eval()(**x).logits)
    unlike = any(map(torch.ne, losses, plain(name)[1]))
    assert unlike == (of != "rewriting")  # that is the same function, in other words


@pytest.mark.parametrize("make", [DynamicQuantization, StaticQuantization])
@pytest.mark.parametrize("name", MODELS)
def test_int8_kernels_compute_about_the_same(name, make):
    torch.manual_seed(0)
    model, x = MODELS[name][0]().eval(), inputs_of(MODELS[name][1], 0)
    tool = make()
    with torch.no_grad():
        expected = model(**x).logits
        with amanda.apply(tool):
            found = model(**x).logits
            if isinstance(tool, StaticQuantization):
                assert torch.equal(found, expected)  # it only observes
                tool.convert()
                found = model(**x).logits
    assert tool.rows()
    assert not torch.equal(found, expected)
    assert (found - expected).norm() < 0.1 * expected.norm()
