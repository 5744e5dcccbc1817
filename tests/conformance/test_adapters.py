"""What the suite runs on."""

from __future__ import annotations


def test_the_reference_driver_is_there(adapters):
    """It is built with the C++ tests: `make build-tests`."""
    assert {"reference/1/eager", "reference/1/graph"} <= adapters.keys()


def test_adapters_name_regimes_that_exist(adapters):
    for adapter in adapters.values():
        assert adapter.same_ids_as in (None, *adapters)
        differentiated = set() if adapter.capabilities.backward == "none" else adapter.ops.keys()
        assert adapter.backward_ops.keys() == differentiated
