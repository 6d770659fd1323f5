"""A rank whose peers come and go: its life, its training, its checkpoints."""
