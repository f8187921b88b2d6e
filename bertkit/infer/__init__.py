"""Commands that use a finished run or a model: predict, evaluate, embed, fill-mask and export."""
