"""Optimizers: hooks around their steps, in PyTorch, Keras and sessions of TensorFlow 1."""

from amanda.driver.optimizers import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

__all__ = ["register_optimizer_step_post_hook", "register_optimizer_step_pre_hook"]
