"""The engine's own process; of the server it knows nothing but the messages of `wire`."""
