"""How PyTorch's own checkpointing behaves, decided by running the installed version."""
