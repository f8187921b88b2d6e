"""The command line. Light: nothing here imports torch, transformers or datasets at its top."""
