"""The alignment term of IPA on stacked parameters, and its step in C++."""

from fedgraph.training.alignment.peer_alignment import Distance, FixedAlignment, PeerAlignment, alignment

__all__ = ["Distance", "FixedAlignment", "PeerAlignment", "alignment"]
