"""StepTool: a tool that works step by step, for scopes with a schedule."""

from __future__ import annotations

from amanda.core.tool import Tool


class StepTool(Tool):
    """Base of tools that must know where a training step begins and ends. Apply them with `amanda.scheduled`::

        class Steps(amanda.StepTool):
            def on_step_end(self, step):
                print("operators of step", step, "have run")

    The methods below are called on the program's thread, and operators that they run are not observed.
    """

    def on_step_begin(self, step: int) -> None:
        """Called when an active step begins: the scope has just been opened, or another active step has ended."""

    def on_step_end(self, step: int) -> None:
        """Called when an active step has ended. The scope may still be open."""

    def on_schedule_end(self, error: BaseException | None) -> None:
        """Called when the program leaves the scheduled scope, which is closed. A step that has begun has not
        ended, and begins anew if the scope is entered again.

        `error` is the exception that left it, or None.
        """
