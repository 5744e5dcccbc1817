"""Drivers connect frameworks with the core: one package for each. It can be imported without the framework."""
