"""Models: target architectures, the EAGLE-3 drafter, their layers, and the readers of their checkpoints."""
