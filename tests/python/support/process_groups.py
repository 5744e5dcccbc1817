"""Leaving a group of processes in the middle of a process."""

from __future__ import annotations

import ctypes

import torch


def destroy_group() -> None:
    """Leaves all groups, and keeps their objects, and so their threads, until the process ends.

    A group's thread may still hold its last work, with what `torch.autograd.graph` stores in the thread's state: a Python
    object. The group's destructor would join the thread with the interpreter lock held, which the thread needs to release
    that object. Nothing tells when it has.
    """
    for group in torch.distributed.distributed_c10d._world.pg_map:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    torch.distributed.destroy_process_group()
