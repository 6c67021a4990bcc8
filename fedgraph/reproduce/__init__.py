"""Tables and figures of papers as data: every cell is an experiment, run once, shown beside the published value."""
