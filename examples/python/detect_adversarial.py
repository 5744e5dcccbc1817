"""Finds adversarial images by the synapses that led to the prediction, compared with those of the predicted class.

A convolutional network learns to read handwritten digits. The path of a class is the union of the effective paths of
its training images. Images that were changed to be misread (FGSM) reach the predicted class on other ways: less of
their path is on that of the class.

There are three detectors, after Qiu et al., CVPR 2019. The first is the Jaccard index of the two paths, the second the
share of the image's path that is on that of the class. The third is a linear model of these shares, for each layer, and
for the best and the second best class. The linear model sees the adversarial images of one half of the test set, and
all are measured on the other half. An AUC of 0.5 is chance, and 1 is perfect.
"""

import amanda
import sklearn.datasets
import sklearn.linear_model
import sklearn.metrics
import torch
import torch.nn.functional as F
from amanda.research.effective_path import EffectivePath, Path


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.fc1, self.fc2 = torch.nn.Linear(64, 32), torch.nn.Linear(32, 10)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def train(model, images, labels, epochs=20):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def fgsm(model, images, labels, epsilon):
    """Goodfellow et al., ICLR 2015: one step along the sign of the gradient."""
    x = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), labels), x)
    return (images + epsilon * gradient.sign()).clamp(0, 1)


@torch.no_grad()
def ranked(model, images):
    return model(images).topk(2).indices


def jaccard(paths, classes):
    """The similarity of each image's path to that of its class."""
    return torch.tensor([path.similarity(class_paths[digit]) for path, digit in zip(paths, classes, strict=True)])


def shares(paths, classes):
    """The share of each image's path, per layer, that is on that of its class."""
    found = [path.similarities(class_paths[k], measure="containment") for path, k in zip(paths, classes, strict=True)]
    return torch.tensor(found)


def features(images):
    """The Jaccard index of each image, and its shares for the best and the second best class."""
    best, second = ranked(model, images).T
    paths, seconds = tool.extract(model, images, best), tool.extract(model, images, second)
    return jaccard(paths, best), shares(paths, best), shares(seconds, second)


def auc(is_adversarial, score):
    return sklearn.metrics.roc_auc_score(is_adversarial, score)


torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small
digits = sklearn.datasets.load_digits()  # 1797 images of 8 x 8 pixels, a part of scikit-learn
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images))
training, test = order[:1200], order[1200:]

model = Network()
train(model, images[training], labels[training])
right = ranked(model, images)[:, 0] == labels
print(f"accuracy {right[test].float().mean():.1%}")

tool = EffectivePath(theta=0.5)
with amanda.apply(tool):  # one scope: operators are analyzed once
    known = training[right[training]]
    paths = tool.extract(model, images[known])
    class_paths = [
        Path.union([path for path, label in zip(paths, labels[known], strict=True) if label == digit])
        for digit in range(10)
    ]
    print(tool.table("id"))
    image, of_class = (sum(path.density() for path in some) / len(some) for some in (paths, class_paths))
    print(f"synapses on the path of an image: {image:.2%}, of a class: {of_class:.2%}")

    right_ones = test[right[test]]
    clean, digits_of = images[right_ones], labels[right_ones]
    half = torch.arange(len(clean)) % 2 == 0
    of_clean = features(clean)
    print("epsilon  fooled  share: clean  adversarial  AUC: jaccard  share  linear model")
    for epsilon in (0.1, 0.3):
        changed = fgsm(model, clean, digits_of, epsilon)
        fooled = ranked(model, changed)[:, 0] != digits_of
        similar, best, second = map(torch.cat, zip(of_clean, features(changed[fooled]), strict=True))
        is_adversarial = torch.cat([torch.zeros(len(clean)), torch.ones(int(fooled.sum()))])
        fits = torch.cat([half, half[fooled]])
        every = torch.cat([best, second], 1)
        linear = sklearn.linear_model.LogisticRegression(class_weight="balanced", C=100).fit(
            every[fits], is_adversarial[fits]
        )
        y, share = is_adversarial[~fits], best[~fits].mean(1)
        areas = auc(y, -similar[~fits]), auc(y, -share), auc(y, linear.decision_function(every[~fits]))
        print(
            f"{epsilon:7}  {fooled.float().mean():6.1%}  {share[y == 0].mean():12.3f}  {share[y == 1].mean():11.3f}"
            f"  {areas[0]:12.2f}  {areas[1]:5.2f}  {areas[2]:12.2f}"
        )
