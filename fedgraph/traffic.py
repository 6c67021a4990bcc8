"""How much a run sends: exchanges, and the bytes of the arrays that went down to the nodes and came up from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """What went between the server and its nodes.

    exchanges  : the opening query is one, however often it had to be asked.
    bytes_down : bytes of the arrays in all requests as Flower encodes them: the numbers, and about 128 bytes per array.
    bytes_up   : the same of all replies that came, usable or not; label counts in the opening query are among them.

    An array that goes to several nodes counts for each of them. Names, settings and metrics (a few kilobytes per node)
    and what the transport adds are not counted, so that runs of the same experiment have the same numbers.
    """

    exchanges: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
