"""Measures the attention of a transformer while it learns, by a tool in TensorFlow's graphs, around Keras' `fit`.

A transformer of two layers learns to read handwritten digits; each row of pixels is a token. The tool sees the softmax
of each attention layer, in each step of the training, and the gradient that comes back to it. It reports their entropy: 1
where a token attends to all rows alike, 0 where it attends to one. Without the tool the same training gives the same
weights, bit for bit.
"""

import amanda
import keras
import numpy as np
import sklearn.datasets
from keras import layers

EPOCHS, TOKENS, WIDTH, HEADS = 4, 8, 32, 4


class Attention(amanda.Tool):
    """Entropy of the attention, and size of its gradients, by layer: one number for each step."""

    def __init__(self):
        super().__init__()
        self.entropy, self.gradient = {}, {}
        self.add_inst_for_op(self.analyze, ops="Softmax", modules="*attention*")
        self.add_inst_for_op(self.analyze_backward, ops="Softmax", modules="*attention*", backward=True)

    def analyze(self, context):
        self.entropy[context.module_path] = []
        context.insert_after_op(self.look, steps=self.entropy[context.module_path])

    def look(self, attention, steps):
        steps.append(-(attention * np.log(attention + 1e-9)).sum(-1).mean() / np.log(TOKENS))

    def analyze_backward(self, context):
        if context.grad_outputs[0] is not None:  # the operator that takes the gradient of the softmax's result
            steps = self.gradient.setdefault(context.module_path, [])
            context.insert_before_backward_op(self.measure, grad_outputs=[0], steps=steps)

    def measure(self, gradient, steps):
        steps.append(np.linalg.norm(gradient))


def make_transformer():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((TOKENS, 8))
    x = layers.Dense(WIDTH)(x) + layers.Embedding(TOKENS, WIDTH)(np.arange(TOKENS)[None])
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)(y, y)
        y = layers.Dense(2 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(y)
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], jit_compile=False)
    return model


pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
pixels = (pixels.reshape(-1, TOKENS, 8) / 16).astype(np.float32)
training, test = (pixels[:1200], labels[:1200]), (pixels[1200:], labels[1200:])

tool, watched, alone = Attention(), make_transformer(), make_transformer()
with amanda.apply(tool):
    watched.fit(*training, batch_size=32, epochs=EPOCHS, verbose=0)
alone.fit(*training, batch_size=32, epochs=EPOCHS, verbose=0)

print("entropy of the attention, by epoch")
for layer, steps in tool.entropy.items():
    print(f"  {layer:40}", *(f"{np.mean(part):.2f}" for part in np.array_split(steps, EPOCHS)))
print("size of the attention's gradient, by epoch")
for layer, norms in tool.gradient.items():
    print(f"  {layer:40}", *(f"{np.mean(part):.4f}" for part in np.array_split(norms, EPOCHS)))
print(f"accuracy {watched.evaluate(*test, verbose=0)[1]:.1%}")
same = all(np.array_equal(a, b) for a, b in zip(watched.get_weights(), alone.get_weights(), strict=True))
print(f"trained without the tool, the weights are {'the same, bit for bit' if same else 'DIFFERENT'}")
