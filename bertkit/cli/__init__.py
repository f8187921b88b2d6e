"""The command line. Importing its modules does not import torch, transformers or datasets."""
