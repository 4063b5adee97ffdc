"""EAGLE-3 drafter checkpoints: every dialect in the wild ends in one internal form."""
