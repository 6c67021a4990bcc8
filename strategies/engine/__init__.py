"""What all strategies stand on: the loop of rounds, phases with exchanges of their own, and from replies to tensors.

:mod:`strategies.engine.base` is what a method of rounds overrides, :mod:`strategies.engine.phases` what one overrides
that goes through phases, :mod:`strategies.engine.chosen` finds the method that an experiment names.
"""
