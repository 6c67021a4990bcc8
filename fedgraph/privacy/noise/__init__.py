"""Noise on vectors and counts, with its (epsilon, delta), drawn from the operating system's entropy.

>>> from fedgraph.privacy.noise import NoiseSettings
>>> round(NoiseSettings(clip_norm=1.0, epsilon=1.0, delta=1e-5).multiplier(), 1)
3.7
"""

from fedgraph.privacy.noise.counts import CountNoiseSettings, noisy_counts
from fedgraph.privacy.noise.entropy import standard_laplace, standard_normal
from fedgraph.privacy.noise.gaussian import NoiseSettings, noise_multiplier_for, privacy_facts, release

__all__ = [
    "CountNoiseSettings",
    "NoiseSettings",
    "noise_multiplier_for",
    "noisy_counts",
    "privacy_facts",
    "release",
    "standard_laplace",
    "standard_normal",
]
