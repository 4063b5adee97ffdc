"""Training an EAGLE-3 drafter: prompts → answers that the target wrote → training-time test → a drafter directory."""
