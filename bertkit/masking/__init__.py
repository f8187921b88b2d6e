"""Which sentences make an example of pre-training, and which of its pieces are hidden: all in numpy."""
