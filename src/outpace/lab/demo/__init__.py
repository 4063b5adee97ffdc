"""`outpace demo`: plain and speculative decoding of the same prompts, and whether they say the same."""
