"""Targets from GGUF files, as llama.cpp writes them."""
