"""Triton kernels, each with its launcher. The PyTorch forms that they are tested against lie one folder up."""
