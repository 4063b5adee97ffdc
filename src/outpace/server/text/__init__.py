"""Texts to token ids, and token ids spelled out, on the HTTP side."""
