"""Shows when the ReLUs of a network die: the share of zeros behind each of them, and their values, over training.

Zeros behind a ReLU are useful: they can be skipped. A layer of zeros is not, because nothing is learned through it. A
network learns handwritten digits with a good learning rate, and with one that is far too large. The plots are written
to sparsity.png.
"""

import amanda
import matplotlib.pyplot as pyplot
import sklearn.datasets
import torch
import torch.nn.functional as F
from amanda.tools.histograms import ValueHistograms


def train(learning_rate):
    """Returns the accuracy on the training set, and the histograms of all ReLUs' results."""
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    for width in (64, 48, 32):
        model.append(torch.nn.LazyLinear(width)).append(torch.nn.ReLU())
    model.append(torch.nn.LazyLinear(10))
    model(images[:1])  # the lazy layers get their shapes
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    histograms = ValueHistograms(ops="relu", max_steps=60)
    with amanda.apply(histograms):
        for _ in range(240):
            batch = torch.randint(len(images), (64,))
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item(), histograms


torch.set_num_threads(1)  # the tensors are small
pyplot.switch_backend("Agg")  # files, no windows
digits = sklearn.datasets.load_digits()  # 1797 images of 8 x 8 pixels, a part of scikit-learn
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
for (lines, heat_map), learning_rate in zip(axes, (0.2, 3.0), strict=True):
    accuracy, histograms = train(learning_rate)
    print(f"learning rate {learning_rate}: {accuracy:.0%} right; share of zeros behind each ReLU")
    frame = histograms.to_pandas("module").pivot(index="step", columns="name", values="sparsity")
    print(frame.loc[[0, 20, 60, 120, 236]].to_string(float_format="{:.0%}".format) + "\n")
    histograms.plot_sparsity(axes=lines)
    histograms.plot("5", axes=heat_map)
    lines.set_title(f"learning rate {learning_rate}")
figure.savefig("sparsity.png")
