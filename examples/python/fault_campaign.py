"""Finds the bits and layers that must not flip: a fault injection campaign on a network that reads digits.

A convolutional network learns handwritten digits. Then single bits of its layers' results and weights are flipped, one
in each run, and the class that it answers is compared with the one it gave before. A flip in the mantissa hardly ever
matters. The highest bit of the exponent does: it makes a number below two enormous.
"""

import amanda
import pandas
import sklearn.datasets
import torch
import torch.nn.functional as F
from amanda.research.error_injection import BitFlip, Campaign, ErrorInjection


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.hidden = torch.nn.Linear(64, 32)
        self.classes = torch.nn.Linear(32, 10)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.classes(F.relu(self.hidden(x.flatten(1))))


def train(model, images, labels, epochs=15):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model):
    return (model(held_out).argmax(1) == answers).float().mean().item()


def corrupted(model, at, bit):
    """The share of each layer's runs in which flipping this bit changes the answer."""
    campaign = Campaign(BitFlip(bit), at=at, trials=20, seed=bit)
    with torch.no_grad():
        for image in held_out[:2]:
            campaign.run(model, image[None])
    return {row.name: row.sdc_rate for row in campaign.rows("module")}


torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small
digits = sklearn.datasets.load_digits()  # 1797 images of 8 x 8 pixels, a part of scikit-learn
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
held_out, answers = images[1400:], labels[1400:]
model = Network()
train(model, images[:1400], labels[:1400])
model.eval()

names = {31: "31 sign", 30: "30 exponent", 29: "29 exponent", 26: "26 exponent", 23: "23 exponent", 22: "22 mantissa"}
for at in ("output", "weight"):
    table = pandas.DataFrame({names[bit]: corrupted(model, at, bit) for bit in names}).T
    print(f"answers that change when one bit flips in a layer's {at}, 40 runs each")
    print(table.to_string(float_format="{:.0%}".format) + "\n")

print(f"accuracy           {accuracy(model):.1%}")
for bit in (22, 30):
    with amanda.apply(ErrorInjection(BitFlip(bit), rate=1e-4)):
        print(f"bit {bit} at rate 1e-4 {accuracy(model):.1%}")
