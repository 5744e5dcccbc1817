"""The exit statuses of commands that run a program. docs/running.md lists them."""

FOUND = 1  # what the command looks for: a NaN, a difference
USAGE = 2  # a mistake in the command line or in a file it names, or a result that could not be written
PROGRAM_FAILED = 3  # of commands whose status shows what was found: the program did not end well by itself
NOT_LOOKED_AT = 4  # with --strict: something ran that a tool was not shown or could not read
