"""The protocol of drivers, their registry, and what all drivers have in common."""
