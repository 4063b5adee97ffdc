"""Which intervals the lab has, and which is for what."""
