"""LOSSES: the losses that several rules ask for. One tool looks at them for all."""

LOSSES = (
    *("cross_entropy_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "smooth_l1_loss", "huber_loss"),
)
