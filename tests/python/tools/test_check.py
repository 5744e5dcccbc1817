"""Check: planted mistakes in two models, what is allowed, answers, and programs that are left as they are."""

import gc
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import RULES, Check, Rule
from torch import nn

CLASSES = 5
OF_TORCH = sum(not rule.is_of_tensorflow and not rule.is_advice for rule in RULES)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, CLASSES))

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))

    @staticmethod
    def batch():
        return torch.randn(6, 3, 8, 8), torch.randint(CLASSES, (6,))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, ids):
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden[:, 0])

    @staticmethod
    def batch():
        return torch.randint(20, (6, 7)), torch.randint(CLASSES, (6,))


class Training:
    """A loop that is right; each mistake overrides a part."""

    finds = None

    def __init__(self, kind):
        torch.manual_seed(0)
        self.model = kind()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)

    def loss(self, scores, labels):
        return F.cross_entropy(scores, labels)

    def begin_step(self):
        self.model.train()
        self.optimizer.zero_grad()

    def backward(self, loss):
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def step(self):
        self.optimizer.step()
        self.schedule.step()

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            return self.model(self.model.batch()[0]).argmax(-1)

    def run(self):
        for _ in range(4):
            self.begin_step()
            x, labels = self.model.batch()
            self.backward(self.loss(self.model(x), labels))
            self.step()
            self.evaluate()
        return [one.detach().clone() for one in self.model.parameters()]


class NotCleared(Training):
    finds = "missing-zero-grad"

    def begin_step(self):
        self.model.train()


class NoBackward(Training):
    finds = "step-without-backward"

    def backward(self, loss):
        pass


class ClearedTooLate(Training):
    finds = "gradient-cleared"

    def begin_step(self):
        self.model.train()

    def step(self):
        self.optimizer.zero_grad()
        super().step()


class ClearedToZeroTooLate(ClearedTooLate):
    def step(self):
        self.optimizer.zero_grad(set_to_none=False)
        Training.step(self)


class Frozen(Training):
    finds = "all-frozen"

    def __init__(self, kind):
        super().__init__(kind)
        self.model.requires_grad_(False)

    def backward(self, loss):
        pass


class HeadLeftOut(Training):
    finds = "parameter-not-in-optimizer"

    def __init__(self, kind):
        super().__init__(kind)
        wide = 8 if kind is Images else 16
        self.model.head = nn.Linear(wide, CLASSES)


class EvaluatesInTraining(Training):
    finds = "dropout-in-evaluation", "batch-norm-in-evaluation"

    def evaluate(self):
        with torch.no_grad():
            return self.model(self.model.batch()[0]).argmax(-1)


class TrainsInEvaluation(Training):
    finds = "eval-in-training"

    def begin_step(self):
        self.optimizer.zero_grad()
        self.model.eval()


class SoftmaxTwice(Training):
    finds = "softmax-before-loss"

    def loss(self, scores, labels):
        return F.cross_entropy(scores.softmax(1), labels)


class SoftmaxOfColumns(Training):
    finds = "softmax-over-batch"

    def loss(self, scores, labels):
        return F.nll_loss(scores.log_softmax(0), labels)


class NoLabels(Training):
    finds = "labels"

    def loss(self, scores, labels):
        return F.cross_entropy(scores, torch.full_like(labels, -100)).nan_to_num()


class SignedLabels(Training):
    finds = "labels"

    def loss(self, scores, labels):
        return F.binary_cross_entropy_with_logits(scores, 2.0 * F.one_hot(labels, CLASSES) - 1)


class Logits(Training):
    finds = "not-probabilities"

    def loss(self, scores, labels):
        return F.nll_loss(scores, labels)


class OutOfReach(Training):
    finds = "target-out-of-reach"

    def loss(self, scores, labels):
        return F.smooth_l1_loss(scores.sigmoid(), 5.0 * F.one_hot(labels, CLASSES))


class Broadcasts(Training):
    finds = "loss-broadcast"

    def loss(self, scores, labels):
        return (scores[:, :1] - labels.float()).abs().mean()


class DividedTwice(Training):
    finds = "loss-divided-twice"

    def loss(self, scores, labels):
        return F.cross_entropy(scores, labels) / 6


class FromNumpy(Training):
    finds = "float64-upcast"

    def loss(self, scores, labels):
        return F.mse_loss(scores, torch.from_numpy(F.one_hot(labels, CLASSES).numpy().astype("float64")))


class ScheduleFirst(Training):
    finds = "scheduler-before-optimizer"

    def step(self):
        self.schedule.step()
        self.optimizer.step()


class NoSchedule(Training):
    finds = "scheduler-not-stepped"

    def step(self):
        self.optimizer.step()


class InitializedAgain(Training):
    finds = "reinitialized"

    def begin_step(self):
        super().begin_step()
        nn.init.xavier_normal_(next(one for one in self.model.parameters() if one.ndim > 1))


MISTAKES = [
    *(NotCleared, NoBackward, ClearedTooLate, ClearedToZeroTooLate, Frozen, HeadLeftOut, EvaluatesInTraining),
    *(TrainsInEvaluation, SoftmaxTwice, SoftmaxOfColumns, NoLabels, Broadcasts, DividedTwice, FromNumpy, ScheduleFirst),
    *(NoSchedule, InitializedAgain, SignedLabels, Logits, OutOfReach),
]
quiet = pytest.mark.filterwarnings("ignore:.*(lr_scheduler|target size|batch_first).*:UserWarning")


@quiet
@pytest.mark.parametrize("kind", [Images, Tokens])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_the_only_finding(mistake, kind):
    expected = [mistake.finds] if isinstance(mistake.finds, str) else [*mistake.finds][: 2 if kind is Images else 1]
    check, training = Check(), mistake(kind)
    with amanda.apply(check):
        training.run()
    assert sorted(one.rule for one in check.findings()) == sorted(expected)
    assert check.skipped == {}
    assert all(
        "test_check.py:" in str(one) or "in features" in str(one) for one in check.findings() if one.place.source
    )


def test_a_part_of_two_models_in_evaluation_mode_is_no_mistake():
    """A generator in evaluation mode, while the discriminator is trained."""
    generator, discriminator = (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 4)) for _ in range(2))
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (generator, discriminator)]

    def program():
        for _ in range(4):
            for one, optimizer in zip((generator, discriminator), optimizers, strict=True):
                generator.train(one is generator)
                optimizer.zero_grad()
                discriminator(generator(torch.randn(6, 4))).square().mean().backward()
                optimizer.step()

    assert found(program).findings() == []


@pytest.mark.parametrize("clears", [False, True])
def test_steps_with_a_closure(clears):
    """As Lightning calls them: what `before_step` could see of gradients is that of the step before."""
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = torch.optim.Adam(body.parameters(), 0.01)

    def closure():
        if clears:
            optimizer.zero_grad()
        loss = F.cross_entropy(head(body(torch.randn(6, 4))), torch.randint(3, (6,)))
        loss.backward()
        return loss

    check = found(lambda: [optimizer.step(closure) for _ in range(4)])
    expected = ["parameter-not-in-optimizer"] if clears else ["missing-zero-grad", "parameter-not-in-optimizer"]
    assert [one.rule for one in check.findings()] == expected


@pytest.mark.parametrize("kind", [Images, Tokens])
def test_the_loop_without_mistakes_has_no_finding_and_its_results_are_equal(kind):
    expected, check = Training(kind).run(), Check(advice=True)
    with amanda.apply(check):
        found = Training(kind).run()
    assert all(map(torch.equal, expected, found))
    assert [one.rule for one in check.findings()] == ["weight-decay-on-norms"]


# ---- what is allowed --------------------------------------------------------------------------------------------------


def broadcast():
    x = nn.Linear(4, 1)(torch.randn(6, 4))
    return (x - torch.ones(6)).square().mean()


def broadcast_on_purpose():
    x = nn.Linear(4, 1)(torch.randn(6, 4))
    return (x - torch.ones(6)).square().mean()  # amanda: allow(labels, loss-broadcast)


def found(program, **arguments):
    check = Check(**arguments)
    with amanda.apply(check):
        program()
    return check


LINE = broadcast.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("allow", "count"),
    [
        ("loss-broadcast", 0),
        ("loss-broadcast:test_check.py", 0),
        (f"loss-broadcast:test_check.py:{LINE}", 0),
        (f"loss-broadcast:test_check.py:{LINE + 1}", 1),
        ("loss-broadcast:head", 1),
        ("labels", 1),
    ],
)
def test_allow(allow, count):
    check = found(broadcast, allow=[allow])
    assert len(check.findings()) == count
    assert ("; 1 finding allowed" in check.answer()) == (count == 0)


def test_a_module_is_allowed():
    class Loss(nn.Module):
        def forward(self, x, target):
            return (x - target).square().mean()

    model = nn.ModuleDict({"body": nn.Linear(4, 1), "loss": Loss()})

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["loss"](self.parts["body"](x), torch.ones(6))

    both = Both()
    for where, count in (("parts.loss", 0), ("parts", 0), ("parts.*", 0), ("parts.body", 1)):
        check = found(lambda: both(torch.randn(6, 4)), allow=[f"loss-broadcast:{where}"])
        assert len(check.findings()) == count


def test_a_comment_in_the_line_allows():
    check = found(broadcast_on_purpose)
    assert check.findings() == []
    assert check.answer().endswith("; 1 finding allowed")


def test_only_and_advice():
    assert found(broadcast, only=["labels"]).findings() == []
    assert Check(only=["dead-units"]).rules == ["dead-units"]
    assert len(Check(advice=True).rules) == len(RULES)
    for option in ("only", "allow"):
        with pytest.raises(
            ValueError, match=rf"\[check\] {option}= names no rule: 'label'; known are accumulation-bypassed, "
        ):
            Check(**{option: ["label"]})


# ---- answers ----------------------------------------------------------------------------------------------------------


def test_the_answer_says_what_was_looked_at():
    check = found(Training(Images).run)
    assert check.answer().startswith(f"nothing found by {OF_TORCH} rules, in ")
    assert check.answer().endswith(" operators that they ask for, and 4 steps of 1 optimizer")
    assert check.answer(ended_well=False).startswith(f"nothing found by {OF_TORCH} rules, until the program failed, in")
    assert found(broadcast).answer().partition("\n")[0].endswith(" and no step of an optimizer")


def test_a_finding_has_line_evidence_and_fix():
    (one,) = found(lambda: [broadcast() for _ in range(3)]).findings()
    assert str(one) == (
        f"loss-broadcast: aten::sub (tests/python/tools/test_check.py:{LINE}), 3 times\n"
        "  prediction and target are broadcast, so that each meets all others: shapes (6, 1) and (6,) give (6, 6)\n"
        "  fix: give both the same shape: prediction.squeeze(-1), or target.unsqueeze(-1)"
    )


class Dropping(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, x):
        return F.dropout(x, self.share)


def test_findings_of_equal_layers_are_one_text():
    layers = nn.Sequential(*map(Dropping, (0.3, 0.3, 0.5, 0.3)))
    with torch.no_grad():
        check = found(lambda: [layers.eval()(torch.ones(4)) for _ in range(2)])
    assert [one.place.module_path for one in check.findings()] == ["0", "1", "2", "3"]
    head, *texts = check.answer().split("\n\n")
    assert head.startswith("4 findings by ")
    line = f"tests/python/tools/test_check.py:{Dropping.forward.__code__.co_firstlineno + 1}"
    assert [text.partition("\n")[0] for text in texts] == [
        f"dropout-ignores-mode: aten::dropout in * ({line}), 3 places, 6 times",
        f"dropout-ignores-mode: aten::dropout in 2 ({line}), 2 times",
    ]


def test_the_line_of_a_mode_is_the_one_that_calls_the_model():
    """The operator has one place, in training and in evaluation."""
    for mistake, method in (
        (EvaluatesInTraining, EvaluatesInTraining.evaluate),
        (TrainsInEvaluation, Training.backward),
    ):
        (one, *_) = found(mistake(Tokens).run).findings()
        first = method.__code__.co_firstlineno
        assert one.place.module_path.startswith("layers.0")
        assert first < int(one.place.source.rpartition(":")[2]) <= first + 4


def test_a_program_that_fails_has_the_findings_so_far():
    def program():
        NotCleared(Images).run()
        F.cross_entropy(torch.randn(2, 3, requires_grad=True), torch.tensor([1, 3]))

    check = Check()
    with pytest.raises(IndexError), amanda.apply(check):
        program()
    assert [one.rule for one in check.findings()] == ["missing-zero-grad", "labels"]
    assert check.findings()[1].evidence == "labels are 1 to 3, and there are 3 classes, from 0 to 2"


def test_reset():
    check = found(NotCleared(Images).run)
    check.reset()
    assert check.findings() == []
    assert check.answer().startswith("nothing was looked at: no operator ran that ")
    with amanda.apply(check):
        NotCleared(Images).run()
    assert [one.rule for one in check.findings()] == ["missing-zero-grad"]
    assert check.answer().partition("\n")[0].endswith("and 4 steps of 1 optimizer")


def count_hooks():
    from amanda.drivers.torch import backward_pass
    from torch.optim import optimizer as hooks

    kinds = hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks, backward_pass._listeners
    return list(map(len, kinds))


@pytest.mark.parametrize("is_reset", [False, True])
def test_no_hook_and_nothing_alive_is_left(is_reset):
    before = count_hooks()
    check, training = Check(advice=True), Training(Images)
    with amanda.apply(check):
        training.run()
        assert all(now > then for now, then in zip(count_hooks(), before, strict=True))
        if is_reset:
            check.reset()
            training.run()
    assert count_hooks() == before
    alive = [weakref.ref(one) for one in (training.model, training.optimizer, next(training.model.parameters()))]
    del training
    gc.collect()
    assert [one() for one in alive] == [None] * 3


def test_an_operator_of_another_thread_that_is_analyzed_as_the_scope_closes():
    class Listening(Rule):
        name, sentence, fix, bad, good = "listening", "", "", "", ""
        ops = ("relu",)
        contexts = []

        def look(self, context):
            self.contexts.append(context)

    before, check = count_hooks(), Check(rules=[Listening])
    with amanda.apply(check):
        torch.ones(2).relu()
    (context,) = Listening.contexts
    check._analyze(check._rules[0].look, context)  # by the other thread
    assert len(Listening.contexts) == 1
    assert count_hooks() == before


def test_a_rule_of_the_user():
    class NoSigmoid(Rule):
        name, sentence, fix, bad, good = "no-sigmoid", "sigmoid is slow", "use tanh", "", ""
        ops = ("sigmoid",)

        def look(self, context):
            self.found_in(context, context.module_path)

    (one,) = found(lambda: nn.Sequential(nn.Sigmoid())(torch.ones(2)), rules=[NoSigmoid]).findings()
    assert (one.rule, one.place.name, one.evidence, one.count) == ("no-sigmoid", "aten::sigmoid", "0", 1)


def test_compiled_code_is_said_not_to_be_looked_at():
    model = torch.compile(nn.Linear(4, 1), backend="eager")
    check = Check()
    with amanda.apply(check, compiled="graph"):
        model(torch.randn(6, 4))
    assert not check.evidence().is_complete
    assert "; not looked at: " in check.answer()


def test_without_operators_nothing_was_looked_at():
    x = torch.ones(2)
    check = found(lambda: x.exp())
    assert check.answer() == f"nothing was looked at: no operator ran that {OF_TORCH} rules ask for"


def asking_for(op):
    class Asking(Rule):
        name, sentence, fix, bad, good = f"no-{op}", "", "", "", ""
        ops = (op,)

        def look(self, context):
            self.found_in(context, context.module_path)

    return Asking


@pytest.mark.parametrize("inner_first", [False, True])
def test_a_rule_sees_what_is_inside_the_operators_of_another(inner_first):
    rules = [asking_for("linear"), asking_for("addmm")]
    with torch.inference_mode():  # linear is made of it then
        check = found(lambda: nn.Linear(4, 1)(torch.ones(3, 4)), rules=rules[::-1] if inner_first else rules)
    assert sorted(one.rule for one in check.findings()) == ["no-addmm", "no-linear"]
    assert check.evidence().operators == 1  # at least: what is inside of it is not counted


def test_narrowing_narrows_what_rules_look_at():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 1)))
    check = Check(rules=[asking_for("linear")])
    check.narrow(modules="1")
    with amanda.apply(check):
        model(torch.ones(3, 4))
    assert [one.evidence for one in check.findings()] == ["1.0"]
    assert check.evidence().operators == 1


def test_labels_of_a_transformed_program_are_read():
    def program():
        scores, labels = torch.randn(3, 4, 5, requires_grad=True), torch.full((3, 4), -100)
        torch.func.vmap(F.cross_entropy)(scores, labels)

    check = found(program)
    assert ([one.rule for one in check.findings()], check.skipped) == (["labels"], {})
