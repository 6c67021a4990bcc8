"""Labelled images dealt out to clients, bundled, downloaded or one's own."""
