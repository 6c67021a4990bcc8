"""Release of vectors with Gaussian noise, and its (epsilon, delta) as computed by a library.

A vector is an owner's embedding of a sample, or a client's update of a model.

The Gaussian mechanism of Dwork and Roth (2014), with the exact condition of Balle and Wang (ICML 2018, theorem 8) as
computed by the ``dp-accounting`` package, which Flower's ``dp`` extra also installs.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.privacy.ledger import Budget
from fedgraph.privacy.noise.entropy import standard_normal
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import Settings

_STEPS_PER_DEVIATION = 1024


class NoiseSettings(Settings):
    """Noise on vectors before they leave their owner. Set either noise_multiplier or epsilon.

    Attributes
    ----------
    clip_norm : maximum Euclidean norm to which vectors are clipped. Replacing a vector changes the release by at
                       most twice this, the sensitivity.
    noise_multiplier : standard deviation of the noise in sensitivities, i.e. in units of 2 clip_norm.
    epsilon          : privacy loss that all releases of one vector may add up to; it determines the noise.
    delta            : probability that the loss is larger; well below one over the number of samples, or of
                       clients where an update is protected.
    releases : number of releases of a vector with new noise, over all runs. A released embedding is stored on its
                       owner's node and sent again as it was; one of the same sample by another frozen model or with
                       other noise is another release. An update is released once per round.
    """

    clip_norm: float = Field(gt=0, allow_inf_nan=False)
    noise_multiplier: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    releases: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> NoiseSettings:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ValueError("set exactly one of noise-multiplier and epsilon")
        return self

    @property
    def sensitivity(self) -> float:
        """Largest Euclidean distance between two clipped vectors, ``2 C``."""
        return 2 * self.clip_norm

    def multiplier(self) -> float:
        """Return the noise's standard deviation over the sensitivity: as given, or the smallest for ``epsilon``.

        Raises ExperimentError when epsilon is given and the accounting package is not installed or finds no solution.
        """
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return noise_multiplier_for(self.epsilon or math.inf, self.delta, self.releases)

    def budget(self, epsilon: float | None = None, delta: float = 1e-5) -> Budget:
        """Return the loss of a release and the limits of all: that of ``releases``, and of a site, if it gives epsilon.

        Losses are ``1 / multiplier^2``, as Gaussian noise adds up. Raises ExperimentError as :meth:`multiplier` does.
        """
        loss = (1 / self.multiplier()) * (1 / self.multiplier())
        agreed = None if epsilon is None else (noise_multiplier_for(epsilon, delta) ** -2,)
        return Budget((loss,), (self.releases * loss,), agreed)

    def deviation(self) -> float:
        """Return the standard deviation of the noise on every number of a vector."""
        return self.multiplier() * self.sensitivity


def privacy_loss(settings: NoiseSettings, owners: int = 1) -> float:
    """Return epsilon at ``settings.delta`` of all releases of one vector.

    For embeddings, neighbours are two data sets that differ in one sample, replaced by any other, at ``owners`` owners;
    the local models are the same. One owner is the unit of local differential privacy; with all owners of the sample it
    is the loss of the person of the sample, against an observer of all of them. For updates, neighbours differ in all
    data of one client.

    T releases at n owners are one Gaussian release of sensitivity ``2 C sqrt(T n)``, exactly: Gaussians compose so.
    Raises ExperimentError when the accounting package is not installed, or epsilon is too large for it to be computed.
    """
    return epsilon_of(settings.multiplier(), settings.delta, settings.releases * owners)


def privacy_facts(settings: NoiseSettings | None, owners: int = 0) -> dict[str, dict[str, float]]:
    """Return the guarantee of noise, as the entry ``privacy`` of ``summary.json``; empty without noise.

    Raises ExperimentError when the accounting package is not installed, or epsilon is too large to be computed.

    Parameters
    ----------
    settings : NoiseSettings or None
        Settings of the noise; None for no noise.
    owners : int
        Of embeddings, the number of owners, any of whom may have a part of a sample: ``epsilon`` is that of what one
        owner releases, ``epsilon_of_all_owners`` of all together.
    """
    if settings is None:
        return {}
    together = {"epsilon_of_all_owners": privacy_loss(settings, owners)} if owners else {}
    return {
        "privacy": {
            "epsilon": privacy_loss(settings),
            "delta": settings.delta,
            "noise_multiplier": settings.multiplier(),
            "clip_norm": settings.clip_norm,
            "releases": settings.releases,
            **together,
        }
    }


def epsilon_of(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Return the smallest epsilon for which noise of ``noise_multiplier`` sensitivities is (epsilon, delta)-private.

    ``releases`` is the number of releases of the same vector. Raises ExperimentError as ``privacy_loss`` does.
    """
    try:
        from dp_accounting import get_epsilon_gaussian  # takes a second to import, and only noise needs it

        epsilon = float(get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))
    except ImportError as error:
        raise _not_installed() from error
    except (ValueError, OverflowError) as error:
        raise ExperimentError(
            f"epsilon of noise-multiplier {noise_multiplier:g} over {releases} releases cannot be computed ({error}); "
            "this noise is too small to protect anything: raise the multiplier"
        ) from error
    return epsilon


def noise_multiplier_for(epsilon: float, delta: float, releases: int = 1) -> float:
    """Return the smallest noise, in sensitivities, for which all releases together are (epsilon, delta)-private.

    Raises ExperimentError when the accounting package is not installed, or finds no noise for epsilon and delta.

    Parameters
    ----------
    epsilon : float
        Privacy loss, sensibly from about 1e-3 to 1e3; with smaller ones noise dominates the vector.
    delta : float
        Probability that the loss is larger.
    releases : int
        Number of releases of the same vector.
    """
    try:
        from dp_accounting import get_sigma_gaussian

        return float(get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)
    except ImportError as error:
        raise _not_installed() from error
    except (ValueError, OverflowError) as error:
        raise ExperimentError(f"no noise can be found for epsilon {epsilon:g} and delta {delta:g}: {error}") from error


def _not_installed() -> ExperimentError:
    return ExperimentError("noise is accounted for by the package dp-accounting; install it first")


def clipped(vectors: Tensor, clip_norm: float) -> Tensor:
    """Return ``h min(1, C / ||h||)`` along the last dimension; float64 of the same shape."""
    vectors = vectors.double()
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    # Divided and then multiplied, so the norm exceeds C by rounding error at most.
    return torch.where(norm > clip_norm, vectors / norm.clamp(min=torch.finfo(norm.dtype).tiny) * clip_norm, vectors)


def release(
    vectors: Tensor,
    settings: NoiseSettings,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Clip vectors and add noise ``N(0, sigma^2 I)``, ``sigma`` from ``settings.deviation()``, before they leave.

    Values are rounded to a grid of about a thousandth of sigma, since their last bits could disclose the clean value.
    Every call is one of ``settings.releases``, and averaging over calls removes the noise: repeatedly requested vectors
    are released once and stored (``Ledger``). Returns float32 of the shape of ``vectors``. Raises DataError for a
    non-finite vector.

    Parameters
    ----------
    vectors : Tensor
        ``[owners, samples, size]`` or any ``[..., size]``, in no particular units.
    settings : NoiseSettings
        Clip norm and noise.
    generator : torch.Generator, optional
        Only for tests and simulations, as reproducible noise can be removed; by default noise comes from the operating
        system.
    """
    if not bool(vectors.isfinite().all()):
        raise DataError("a vector to be released has numbers that are not finite; check the outputs of the local model")
    sigma = settings.deviation()
    noise = sigma * standard_normal(vectors.shape, generator).to(vectors.device)
    noisy = clipped(vectors, settings.clip_norm) + noise
    grid = 2.0 ** math.floor(math.log2(sigma)) / _STEPS_PER_DEVIATION
    return ((noisy / grid).round() * grid).float()
