"""Deployment on separate machines: credentials, checks, and commands that start Flower's programs."""
