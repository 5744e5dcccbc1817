"""A kernel of PyTorch's dispatcher that counts and passes the call on, compiled when it is first asked for."""

import ctypes
import functools
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import torch
from configurations import Missing
from torch.utils import cpp_extension

LIBRARIES = ("c10", "torch_cpu", "torch_python")


@functools.cache
def library():
    """Its functions: see bare_kernel.cpp."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise Missing("no compiler")
    torch_folder = Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "bare_kernel.so")
        command = [compiler, "-O3", "-std=c++20", "-shared", "-fPIC", Path(__file__).with_suffix(".cpp"), "-o", built]
        command += [f"-I{each}" for each in (*cpp_extension.include_paths(), sysconfig.get_path("include"))]
        command += [f"-L{torch_folder}", f"-Wl,-rpath,{torch_folder}", *(f"-l{name}" for name in LIBRARIES)]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"[bench] {compiler}: {done.stderr[-2000:]}")
        loaded = ctypes.PyDLL(built)
    loaded.enter.argtypes = [ctypes.py_object]
    loaded.enter.restype = loaded.leave.restype = None
    loaded.count.restype = ctypes.c_long
    return loaded
