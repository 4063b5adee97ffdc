"""`outpace report`: results as one HTML file. It reads JSON alone and needs no torch."""
