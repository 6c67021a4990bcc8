"""Foundations: errors, settings, plug-ins, files, randomness, threads.

Every module here may be imported by itself; none depends on clients, models or data.

    >>> from fedgraph.support.settings import Settings, parse
"""
