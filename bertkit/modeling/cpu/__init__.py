"""Replacements of PyTorch modules that train faster on a CPU, written in PyTorch without compiled code."""
