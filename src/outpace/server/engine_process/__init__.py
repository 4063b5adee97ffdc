"""The engine's own process, which `python -m` runs; of the server it knows nothing but the messages of `wire`."""
