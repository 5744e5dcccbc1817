"""The parts of `amanda.tools.cupti_profiler`."""
