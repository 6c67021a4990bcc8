"""Foundations: errors, settings, plug-ins, files, randomness, threads.

Modules here do not depend on clients, models or data.

    >>> from fedgraph.support.settings import Settings, parse
"""
