"""The command line; no module imports torch, transformers or datasets when it is loaded."""
