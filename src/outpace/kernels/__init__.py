"""What runs on the device, one idea a file; every file holds the PyTorch reference that runs on any device."""
