"""`pretrain-mlm-nsp`: pre-training on plain text."""
