"""What runs at the server: one file per method, and ``app.py``, the ServerApp."""
