"""Leaving a group of processes in the middle of a process."""

from __future__ import annotations

import time

import torch


def destroy_group() -> None:
    """Destroys the default group, once its thread has let go of its last work.

    That work holds what `torch.autograd.graph` stores in the thread's state, a Python object. The group's destructor joins
    the thread with the interpreter lock held, which the thread needs to release the object.
    """
    time.sleep(0.1)
    torch.distributed.destroy_process_group()
