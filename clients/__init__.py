"""What runs where the data is: one file per method, and ``app.py``, the ClientApp."""
