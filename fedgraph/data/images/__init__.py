"""Labelled images partitioned among clients: bundled, downloaded or the user's own."""
