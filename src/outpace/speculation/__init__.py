"""The speculation cycle: draft, verify, accept, commit. Plain decoding is the same loop with k = 0."""
