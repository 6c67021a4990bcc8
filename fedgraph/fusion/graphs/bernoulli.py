"""Random consensus graphs with learned edge probabilities, by the inverse CDF or by Gumbel-Softmax (F3, section 5).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
definition 1 and eq. 9. An edge is ``z = sigmoid((q(theta) - s) / tau)``, for the inverse CDF with ``q = F^-1`` and s
drawn from F. Gumbel-Softmax has the same form: the first entry of ``softmax((log theta + g1, log(1 - theta) + g2) /
tau)`` is z with ``q = logit`` and ``s = g2 - g1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, distributions, nn
from torch.distributions import AffineTransform, Distribution, SigmoidTransform, TransformedDistribution, Uniform

from fedgraph.fusion.graphs.drawn import Draw, Workspace, propagate
from fedgraph.support.errors import ExperimentError

Method = Literal["icdf", "gumbel"]

SMALLEST = 1e-4
"""Minimum distance of edge probabilities from 0 and 1."""

_STEP = 2.0**-24
"""Spacing and minimum of the uniform draws, as 0 has an infinite quantile."""


class BernoulliGraph(nn.Module):
    """Undirected graphs over n owners whose edges are soft draws from Bernoulli(theta_ij), i < j.

    Parameters
    ----------
    owners : int
        n.
    generator : torch.Generator
        Draws the initial probabilities, uniform on (0, 1).
    temperature : float
        tau; edges approach 0 or 1 as it decreases.
    workers : int
        Threads that draw graphs; results do not depend on it.

    Attributes
    ----------
    theta : nn.Parameter
        Probabilities of the strict upper triangle, row by row, ``[n (n - 1) / 2]``.
    """

    upper: Tensor
    entries: Tensor

    def __init__(self, owners: int, generator: torch.Generator, temperature: float = 0.1, workers: int = 1) -> None:
        super().__init__()
        self.owners, self.temperature, self.workers = owners, temperature, workers
        self._workspace = Workspace()
        pairs = owners * (owners - 1) // 2
        self.theta = nn.Parameter(torch.rand(pairs, generator=generator).clamp_(SMALLEST, 1 - SMALLEST))
        rows, columns = torch.triu_indices(owners, owners, 1)
        entries = torch.zeros(owners, owners, dtype=torch.int64)
        entries[rows, columns] = entries[columns, rows] = torch.arange(pairs)
        # Positions of the triangle's entries in the full matrix, and of the matrix's entries in the triangle.
        self.register_buffer("upper", rows * owners + columns, persistent=False)
        self.register_buffer("entries", entries.flatten(), persistent=False)

    def quantile(self, theta: Tensor) -> Tensor:
        """Return q(theta); an edge exists if it exceeds the noise."""
        raise NotImplementedError

    def noise(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Fill ``out`` with draws of s."""
        raise NotImplementedError

    def propagate(self, features: Tensor, counted: Tensor, generator: torch.Generator, shared: bool = False) -> Tensor:
        """Compute ``D^-1/2 A D^-1/2 X`` with a newly drawn graph ``A = S + I`` for every sample.

        The product is returned transposed, ``[batch, columns, owners]``.

        Parameters
        ----------
        features : Tensor
            X transposed, ``[batch, columns, owners]``.
        counted : Tensor
            float ``[batch, owners]``, 1 for owners that count towards degrees, ``D = diag(A counted)``.
        generator : torch.Generator
            Source of the graphs.
        shared : bool
            Whether all samples of the batch use one graph.
        """
        return propagate(self._levels(), features, counted, self._draw(generator, shared))

    @torch.no_grad()
    def shared(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the graphs that :meth:`propagate` shares among samples with each generator, without self loops.

        Returns ``[generators, owners, owners]``.
        """
        levels = self._levels()
        return torch.cat([self._draw(each, True).graphs(levels, 1, 0) for each in generators])

    def _draw(self, generator: torch.Generator, shared: bool) -> Draw:
        seed = int(torch.randint(2**62, (), generator=generator))
        return Draw(self.noise, self.temperature, self.upper, self.entries, self.owners, seed, shared,
                    self.workers, self._workspace)  # fmt: skip

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw graphs ``[count, owners, owners]``, symmetric with a zero diagonal, differentiable in theta.

        For inspection; :meth:`propagate` takes less time and memory.
        """
        noise = self.noise(torch.empty(count, len(self.theta)), generator).to(self.theta)
        return self._full(((self._levels() - noise) / self.temperature).sigmoid())

    def expected(self) -> Tensor:
        """Return edge probabilities ``[owners, owners]``, symmetric with a zero diagonal, differentiable in theta."""
        return self._full(self.probabilities()[None])[0]

    def probabilities(self) -> Tensor:
        """Return theta, clamped away from 0 and 1."""
        return self.theta.clamp(SMALLEST, 1 - SMALLEST)

    @torch.no_grad()
    def constrain(self) -> None:
        """Clamp theta after a step of the optimiser."""
        self.theta.clamp_(SMALLEST, 1 - SMALLEST)

    def _levels(self) -> Tensor:
        return self.quantile(self.probabilities())

    def _full(self, triangles: Tensor) -> Tensor:
        whole = triangles.new_zeros(len(triangles), self.owners**2).index_copy(1, self.upper, triangles)
        whole = whole.view(-1, self.owners, self.owners)
        return whole + whole.mT


class InverseCdfGraph(BernoulliGraph):
    """Bernoulli graphs with edges by the inverse CDF (eq. 9): q = F^-1, s drawn from F.

    Raises ExperimentError for a reference that is unknown, has no inverse CDF or does not accept the options.

    Parameters
    ----------
    owners, generator, temperature, workers
        As in :class:`BernoulliGraph`.
    reference : str
        Name of F: any distribution of ``torch.distributions`` that has an inverse CDF, or ``Logistic``.
    options : mapping of str to float, optional
        Parameters of F; by default the standard ones.
    """

    def __init__(
        self,
        owners: int,
        generator: torch.Generator,
        temperature: float = 0.1,
        workers: int = 1,
        reference: str = "Normal",
        options: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(owners, generator, temperature, workers)
        self.reference, self.options = reference, dict(options or {})
        self.distribution.icdf(torch.tensor(0.5))

    def quantile(self, theta: Tensor) -> Tensor:
        """Return F^-1(theta)."""
        return self.distribution.icdf(theta)

    def noise(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Fill ``out`` with draws from F."""
        if self.reference == "Normal":
            # Twice as fast as by the inverse CDF.
            mean, deviation = self.options.get("loc", 0.0), self.options.get("scale", 1.0)
            return out.normal_(mean, deviation, generator=generator)
        uniform = out.uniform_(_STEP, 1, generator=generator)
        return out.copy_(self.distribution.icdf(uniform))

    @cached_property
    def distribution(self) -> Distribution:
        """The distribution F."""
        return reference_distribution(self.reference, self.options)


class GumbelGraph(BernoulliGraph):
    """Bernoulli graphs with edges by Gumbel-Softmax: q = logit, and s is the difference of two Gumbel draws.

    Parameters
    ----------
    owners, generator, temperature, workers
        As in :class:`BernoulliGraph`.
    """

    def quantile(self, theta: Tensor) -> Tensor:
        """Return ``log theta - log(1 - theta)``."""
        return theta.logit()

    def noise(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Fill ``out`` with ``g2 - g1``, where ``g = -log(-log u)``."""
        first = torch.empty_like(out).uniform_(_STEP, 1, generator=generator).log_()
        second = out.uniform_(_STEP, 1, generator=generator).log_()
        return torch.div(first, second, out=out).log_()


_STANDARD: dict[str, dict[str, float]] = {
    "Cauchy": {"loc": 0.0, "scale": 1.0},
    "Gumbel": {"loc": 0.0, "scale": 1.0},
    "Laplace": {"loc": 0.0, "scale": 1.0},
    "Logistic": {"loc": 0.0, "scale": 1.0},
    "Normal": {"loc": 0.0, "scale": 1.0},
    "Uniform": {"low": 0.0, "high": 1.0},
}


def _logistic(loc: float, scale: float) -> Distribution:
    return TransformedDistribution(
        Uniform(0.0, 1.0, validate_args=False), [SigmoidTransform().inv, AffineTransform(loc, scale)]
    )


def reference_distribution(name: str, options: Mapping[str, float]) -> Distribution:
    """Return the distribution of ``torch.distributions`` called ``name``, or ``Logistic``, with these parameters.

    Raises ExperimentError if it is unknown, does not accept the parameters, or has no inverse CDF.
    """
    kind = _logistic if name == "Logistic" else getattr(distributions, name, None)
    where = f"reference = '{name}'"
    if kind is None or not callable(kind) or (isinstance(kind, type) and not issubclass(kind, Distribution)):
        raise ExperimentError(
            f"{where} is not in torch.distributions; use a distribution such as {', '.join(_STANDARD)}"
        )
    parameters: dict[str, Any] = {**_STANDARD.get(name, {}), **options}
    try:
        found: Distribution = kind(**parameters)
        found.icdf(torch.tensor(0.5))
        # Validation of arguments in every step would synchronise with the GPU.
        found._validate_args = False
    except NotImplementedError:
        raise ExperimentError(
            f"{where} has no inverse CDF in torch.distributions; use one that has, such as {', '.join(_STANDARD)}"
        ) from None
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{where}, reference-options {parameters}: {error}") from None
    return found
