"""FedAvg of one small task as users of other programs write it; each runs in an environment of its own.

``task.py`` is what they share, and knows neither them nor fedgraph.
"""
