"""The least that a forward can take: the bytes it reads and the products it multiplies, at the best of a device."""
