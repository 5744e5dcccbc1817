"""Names and ids of places, modules and parameters."""
