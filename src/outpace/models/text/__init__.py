"""Text to token ids and back: tokenizers, chat templates, and text that arrives in pieces."""
