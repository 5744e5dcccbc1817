"""Half of ResNet-50's weights are zero and stay zero, while Keras trains it on: pruning in TensorFlow's graphs.

ResNet-50 of keras.applications learns to read handwritten digits. Then `MagnitudePruning`, the tool that also prunes
PyTorch's models, holds the smallest half of each weight at zero, in the forward pass and in the gradients. The model,
its training step and its optimizer know nothing of it.
"""

import amanda
import keras
import numpy as np
import sklearn.datasets
from amanda.tools.pruning import MagnitudePruning

keras.utils.set_random_seed(0)
images, labels = sklearn.datasets.load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 8 - 1
images = np.repeat(images.repeat(4, 1).repeat(4, 2), 3, 3)  # ResNet-50 takes 32 x 32 pixels and more, of three colors
training, test = (images[:128], labels[:128]), images[1600:1616]

model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)


def train():
    """One epoch. Returns the loss, averaged over its steps."""
    return model.fit(*training, batch_size=16, shuffle=False, verbose=0).history["loss"][0]


def predictions():
    return model.predict(test, batch_size=16, verbose=0)


print(f"dense: loss {train():.2f}")
pruning = MagnitudePruning(sparsity=0.5)
scope = amanda.apply(pruning)
with scope:
    print(f"half of the weights are zero: loss {train():.2f}")
    pruned = predictions()
rows = pruning.rows()
convolutions = [row for row in rows if row.name == "tensorflow::Conv2D"]
print(f"{sum(row.pruned for row in rows):,} of {sum(row.weights for row in rows):,} weights are zero")
print(f"in {len(convolutions)} convolutions and {len(rows) - len(convolutions)} matrix products")

dense = predictions()  # outside the scope the model computes with all of its weights again
pruning.apply_to(model)  # and now the zeros are written into them
print(f"predictions outside the scope differ: {not np.array_equal(dense, pruned)}")
print(f"predictions with the zeros written, without the tool, are the same: {np.array_equal(predictions(), pruned)}")
