"""The parts that the author of a tool uses: tools, contexts, scopes, switches, schedules. `amanda` exports them."""
