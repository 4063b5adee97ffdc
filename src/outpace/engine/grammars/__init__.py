"""Grammars: compiling them, following an answer through one, and the masks that hold the next tokens to it."""
