"""Modules that are faster than those of torch on CPUs."""
