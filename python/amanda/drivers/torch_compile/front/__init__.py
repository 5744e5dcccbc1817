"""Where programs enter: Dynamo's callback, and the compiled functions that it returns."""
