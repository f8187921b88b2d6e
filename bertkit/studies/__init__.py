"""Studies: a task over folds, seeds and hyperparameter trials."""
