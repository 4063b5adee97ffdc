"""What a checkpoint is, told from its headers: a target, a drafter beside it."""
