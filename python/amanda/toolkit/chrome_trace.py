"""Chrome traces: files of events over time, for Perfetto and chrome://tracing."""

from amanda.reports.chrome_trace import Event, arrow, metadata, slice_of, write

__all__ = ["Event", "arrow", "metadata", "slice_of", "write"]
