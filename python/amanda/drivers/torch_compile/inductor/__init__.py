"""How inductor compiles graphs with taps."""
