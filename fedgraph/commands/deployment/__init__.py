"""Real clients on separate machines: credentials, checks, and the commands that start Flower's programs."""
