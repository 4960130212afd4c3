"""Variants of the spectral bank and of the factors' optimiser that the program has no setting for.

Each one is a context manager that `tools/run_arms.py` enters around a run. Formulas are in the names' docstrings;
X is one factor [m, r] with orthonormal columns, sym(A) = (A + A^T) / 2.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor, nn

from dormouse.model.bank import ExpertBank, Factors
from dormouse.model.roles import Role, declare
from dormouse.train.muon import Muon, MuonParameter


def tangent(X: Tensor, D: Tensor) -> Tensor:
    """Part of D that keeps X^T X to first order: D - X sym(X^T D)."""
    A = X.mT @ D
    return D - X @ ((A + A.mT) / 2)


class TangentMuon(Muon):
    """Factors move along the tangent part of the orthogonalised direction."""

    def move(self, p: MuonParameter, direction: Tensor, lr: float, scale: float) -> None:
        """As Muon for matrices; factors are the parameters without a scale by shape."""
        if not p.shape_scale:
            direction = tangent(p.parameter, direction)
        super().move(p, direction, lr, scale)


class LandingMuon(TangentMuon):
    """Landing (arXiv 2102.07432): the tangent step and a pull towards orthonormality, never a retraction."""

    pull = 0.1
    """Share of the error X (X^T X - I) / 2 that a step takes away."""

    def move(self, p: MuonParameter, direction: Tensor, lr: float, scale: float) -> None:
        """Tangent step, then the pull at its own rate."""
        super().move(p, direction, lr, scale)
        if not p.shape_scale:
            X = p.parameter
            X.sub_(X @ (X.mT @ X - torch.eye(X.shape[-1], dtype=X.dtype)), alpha=self.pull / 2)


class RiemannianMuon(Muon):
    """Factors by Adam with one second moment a matrix on tangent gradients, the step tangent again."""

    rate = 0.1
    """Rate of the factors over that of Muon, so that an entry moves about as far a step."""
    betas = (0.9, 0.95)

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # pyrefly: ignore
        self.second = {
            p.name: p.parameter.new_zeros(p.parameter.shape[:-2]) for p in self.parameters if not p.shape_scale
        }
        self.steps = 0

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        """Muon for matrices; factors as above."""
        self.steps += 1
        factors = [p for p in self.parameters if not p.shape_scale]
        grads = {p.name: p.parameter.grad for p in factors}
        for p in factors:
            p.parameter.grad = None
        super().step(lr_scale)
        for p in factors:
            if (grad := grads[p.name]) is not None:
                p.parameter.grad = grad
                self._step_factor(p, grad, self.lr * lr_scale * self.rate)

    def _step_factor(self, p: MuonParameter, grad: Tensor, lr: float) -> None:
        X, (b1, b2) = p.parameter, self.betas
        g = tangent(X, grad)
        m = self.buffers[p.name].lerp_(g, 1 - b1)
        v = self.second[p.name].lerp_(g.square().mean((-2, -1)), 1 - b2)
        size = (v / (1 - b2**self.steps)).sqrt().clamp(min=1e-20)[..., None, None]
        X.sub_(tangent(X, m / (1 - b1**self.steps) / size), alpha=lr)


class FullCoreBank(ExpertBank):
    """W = U S V^T with a full r x r core S while training, born diagonal."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyrefly: ignore
        for name in ("up", "down"):
            s = getattr(self, f"{name}_s").detach()
            delattr(self, f"{name}_s")
            setattr(self, f"{name}_S", nn.Parameter(torch.diag_embed(s)))
        factors = dict.fromkeys(("up_U", "up_V", "down_U", "down_V"), Role.FACTOR)
        declare(self, **factors, up_S=Role.VECTOR, down_S=Role.VECTOR)

    def prepare(self) -> Factors:
        """The core folded into the narrow side of each layer."""
        return Factors(self.up_U @ self.up_S, self.up_V, self.down_U, self.down_V @ self.down_S.mT)


@contextmanager
def tangent_steps() -> Iterator[None]:
    """Muon's direction made tangent, then the retraction."""
    with mock.patch("dormouse.train.optim.Muon", TangentMuon):
        yield


@contextmanager
def landing() -> Iterator[None]:
    """Tangent step and pull; the plan switches the retraction off."""
    with mock.patch("dormouse.train.optim.Muon", LandingMuon):
        yield


@contextmanager
def riemannian() -> Iterator[None]:
    """Factors by the matrix-wise Adam on the manifold."""
    with mock.patch("dormouse.train.optim.Muon", RiemannianMuon):
        yield


@contextmanager
def full_core() -> Iterator[None]:
    """The full core in place of singular values."""
    with mock.patch("dormouse.model.experts.ExpertBank", FullCoreBank):
        yield
