"""uGLAD: precision matrices from an unrolled network, trained on the correlations only.

Shrivastava, Chajewska, Abraham, Chen: uGLAD: Sparse graph recovery by optimizing deep unrolled networks (2022); the
steps are those of GLAD (Shrivastava et al., ICLR 2020). Every client has its own network, and all are trained at
once, in tensors ``[clients, tables, units, units]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedgraph.graphical.recovery.settings import RecoverySettings
from fedgraph.training import Optimiser, TrainSettings, fresh_state

_RHO = ((3, 3), (3, 1), (3, 3), (3, 1), (1, 3), (1, 1))
_LAMBDA = ((3, 2), (3, 1), (1, 3), (1, 1))
"""Shapes of weights and biases, layer by layer."""

_INITIAL_THRESHOLD = 0.1
"""Initial rho, the threshold of entries of the precision matrix. The released 0.5 makes some networks never find an
edge."""

_SHAPES = ((1, 1), *_RHO, *_LAMBDA)
"""Shapes of all learned parameters: first t."""

_SMALLEST_EIGENVALUE = 1e-2
"""Below it, log det is continued linearly, as thresholds may leave a matrix that is not positive definite."""


def uglad_precisions(
    correlations: Tensor, targets: Tensor, generators: Sequence[torch.Generator], settings: RecoverySettings
) -> Tensor:
    """Return precision matrices float32 ``[clients, tables, units, units]`` of correlation matrices of that shape.

    targets    : ``[clients, units, units]``; the loss of a client is the mean over its tables' precision matrices P of
                 ``-log det P + tr(S P)``, S its target. The true precision is never used.
    generators : of each client's initial network.

    Raises torch.linalg.LinAlgError where training diverges.
    """
    correlations, targets = correlations.float(), targets.float()[:, None]
    drawn = [initial_parameters(each) for each in generators]
    parameters = torch.stack(drawn).to(correlations.device)
    adam = TrainSettings(optimizer="adam")
    state = fresh_state(adam, len(parameters), parameters.shape[1], correlations.device)
    optimiser = Optimiser(adam, settings.learning_rate, state)
    for _ in range(settings.epochs):
        learned = parameters.detach().requires_grad_()
        precisions = unroll(learned, correlations, settings.steps)
        loss = (targets * precisions).sum((-2, -1)) - log_determinant(precisions)
        (gradient,) = torch.autograd.grad(loss.mean(1).sum(), learned)
        optimiser.step(parameters, gradient)
    result = unroll(parameters, correlations, settings.steps)
    if not bool(result.isfinite().all()):
        raise torch.linalg.LinAlgError("a precision matrix is not finite")
    return result


def initial_parameters(generator: torch.Generator) -> Tensor:
    """Return one client's initial network, ``[parameters]``: t = 1, layers initialised as PyTorch's linear ones."""
    parts = [torch.ones(1)]
    for layers in (_RHO, _LAMBDA):
        for at, shape in enumerate(layers):
            # A bias has the range of the weights before it.
            bound = 1 / math.sqrt(layers[at - at % 2][1])
            parts.append(torch.rand(shape[0] * shape[1], generator=generator) * 2 * bound - bound)
    # A rho of 1/2, as initialised, may make every entry 0, without a gradient to decrease it.
    parts[len(_RHO)] = torch.tensor([math.log(_INITIAL_THRESHOLD / (1 - _INITIAL_THRESHOLD))])
    return torch.cat(parts)


def unroll(parameters: Tensor, correlations: Tensor, steps: int) -> Tensor:
    """Return theta after the steps, ``[clients, tables, units, units]`` like the correlations S.

    ``theta_0 = (S + t I)^-1``; then in each step the minimiser for a given lambda, entries shrunk by
    ``rho(theta_half, S, theta)``, and ``lambda <- Lambda(|theta - theta_half|_F^2, lambda)``.

    parameters : ``[clients, parameters]``.
    """
    start, *layers = split(parameters)
    rho_layers, lambda_layers = layers[: len(_RHO)], layers[len(_RHO) :]
    # t must not change its sign: S + t I could be singular.
    eye = torch.eye(correlations.shape[-1], device=correlations.device)
    theta = torch.linalg.inv(correlations + start[..., None].abs() * eye)
    ones = correlations.new_ones(correlations.shape[:2])
    lambda_ = _perceptron(lambda_layers, ones, torch.zeros_like(ones))
    for _ in range(steps):
        half = minimiser(correlations / lambda_[..., None, None] - theta, lambda_)
        rho = _perceptron(rho_layers, half, correlations, theta)
        theta = half.sign() * (half.abs() - rho).relu()
        lambda_ = _perceptron(lambda_layers, (theta - half).square().sum((-2, -1)), lambda_)
    return theta


def split(parameters: Tensor) -> list[Tensor]:
    """Split parameters into t, weights and biases of rho and those of Lambda, each ``[clients, outputs, inputs]``."""
    parts = parameters.split([outputs * inputs for outputs, inputs in _SHAPES], 1)
    return [part.reshape(-1, *shape) for part, shape in zip(parts, _SHAPES, strict=True)]


def _perceptron(layers: Sequence[Tensor], *inputs: Tensor) -> Tensor:
    """Apply a perceptron to each entry of ``inputs`` ``[clients, ...]``: tanh between layers, a sigmoid at the end."""
    # Channels before entries: several times faster than the other way round.
    values = torch.stack(inputs, 1).flatten(2)
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        values = torch.baddbmm(bias, weight, values).tanh()
    return torch.baddbmm(layers[-1], layers[-2], values).sigmoid().reshape(inputs[0].shape)


def consensus(precisions: Tensor) -> Tensor:
    """Combine matrices ``[..., tables, units, units]`` into one, ``[..., units, units]``.

    An entry gets its smallest absolute value, with the most common sign: an edge must be in all tables.
    """
    signs = precisions.sign().sum(-3)
    return precisions.abs().amin(-3) * torch.where(signs < 0, -1.0, 1.0)


def minimiser(b: Tensor, lambda_: Tensor) -> Tensor:
    """Return ``(-b + sqrt(b^T b + 4/lambda I)) / 2``, symmetric b ``[..., units, units]``, lambda ``[...]`` above 0."""
    result: Tensor = _Minimiser.apply(b, lambda_)
    return result


def log_determinant(matrices: Tensor) -> Tensor:
    """Return log det of symmetric matrices ``[..., units, units]``, finite even if they are not positive definite."""
    result: Tensor = _LogDeterminant.apply(matrices)
    return result


class _Minimiser(torch.autograd.Function):
    """A function of eigenvalues whose gradient does not divide by differences between them, which may be 0."""

    @staticmethod
    def forward(context: Any, b: Tensor, lambda_: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(b)
        roots = (values.square() + 4 / lambda_[..., None]).sqrt()
        context.save_for_backward(values, vectors, roots, lambda_)
        return (vectors * ((roots - values) / 2)[..., None, :]) @ vectors.mT

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors, roots, lambda_ = context.saved_tensors
        inner = vectors.mT @ gradient @ vectors
        # (r_i - r_j) / (v_i - v_j) is (v_i + v_j) / (r_i + r_j), since r^2 - v^2 is the same for all.
        sums = (values[..., None] + values[..., None, :]) / (roots[..., None] + roots[..., None, :])
        by_b = vectors @ (inner * ((sums - 1) / 2)) @ vectors.mT
        by_lambda = -(inner.diagonal(dim1=-2, dim2=-1) / roots).sum(-1) / lambda_.square()
        return by_b, by_lambda


class _LogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, matrices: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrices)
        raised = values.clamp(min=_SMALLEST_EIGENVALUE)
        context.save_for_backward(raised, vectors)
        return (raised.log() + (values - raised) / raised).sum(-1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raised, vectors = context.saved_tensors
        return (vectors * (gradient[..., None] / raised)[..., None, :]) @ vectors.mT
