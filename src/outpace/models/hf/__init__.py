"""Targets from a directory in the layout of transformers: config.json and safetensors."""
