"""What `benchmarks/soak.py` is made of: what is asked, the server's process, and the clients."""
