"""What everything stands on: errors, settings, plug-ins, files, randomness, threads.

Every module here may be imported by itself; they know nothing of clients, models or data.

    >>> from fedgraph.support.settings import Settings, parse
    >>> class TrainTable(Settings):
    ...     learning_rate: float = 0.1
    >>> parse(TrainTable, {"learning-rate": 0.2}, "[train]").learning_rate
    0.2
"""
