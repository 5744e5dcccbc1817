"""Evidence: what ran, and a tool did not look at. `Tool.evidence` reports it; a tool's `_omissions` adds its own."""

from amanda.core.evidence import Unseen, counted, facts, of_left_out, of_skips

__all__ = ["Unseen", "counted", "facts", "of_left_out", "of_skips"]
