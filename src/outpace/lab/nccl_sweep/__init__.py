"""Which settings of NCCL bring this model's parts together fastest, each measured in processes of its own."""
