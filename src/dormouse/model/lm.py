"""The byte language model: ``Embedding(256) -> LoopBlock x max_iter -> RMSNorm -> lm_head``.

There is one readout, ``lm_head(RMSNorm(mean_i out_proj(h_i)))``; it is trained, evaluated and generated from.
``out_proj`` is linear, so the mean is taken before it: one product instead of one a pass. Deep supervision sends
every pass through the same projection, norm and head.
"""

import torch
from torch import Tensor, nn

from dormouse.config.schema import ModelConfig
from dormouse.config.sizes import router_columns
from dormouse.config.unbuilt import unbuilt
from dormouse.errors import ConfigError
from dormouse.model.bank import Path
from dormouse.model.loop import LoopBlock
from dormouse.model.norm import RMSNorm
from dormouse.model.records import LoopOutput, LoopState, RoutingRecord
from dormouse.model.roles import Role, declare, spectral_factors
from dormouse.model.router import Routing
from dormouse.model.spectral import SpectralLinear
from dormouse.ops.precision import widened

VOCAB = 256


class Dormouse(nn.Module):
    """Byte-level language model with a weight-shared looped block."""

    def __init__(self, config: ModelConfig) -> None:
        """Create a model with random weights from torch's global generator.

        Raises:
            ConfigError: the configuration asks for a mechanism that is not built.
        """
        super().__init__()
        if missing := unbuilt(config):
            raise ConfigError("\n".join(missing))
        self.config = config
        self.path: Path = "dispatch"  # how routed experts are computed unless a call says otherwise
        parts = config.tsct_parts if config.use_tsct else ()
        d = config.d_model
        self.embedding = nn.Embedding(VOCAB, d)
        declare(self.embedding, weight=Role.EMBEDDING)
        self.loop = LoopBlock(config)
        self.out_proj = _linear(d, d, config, spectral="out_proj" in parts)
        self.norm = RMSNorm(d, config.norm_eps)
        self.lm_head = _head(config, spectral="head" in parts)
        self.future_head = _head(config, spectral=False) if config.aux_fb_weight > 0 else None

    def initial_state(self, batch_size: int) -> LoopState:
        """The state before the first byte; passing None to `forward` is the same."""
        return self.loop.initial_state(batch_size)

    @property
    def n_passes(self) -> int:
        """Passes that a forward runs; ``max_iter`` unless set to fewer."""
        return self.loop.n_passes

    @n_passes.setter
    def n_passes(self, number: int) -> None:
        if not 1 <= number <= self.config.max_iter:
            raise ValueError(f"n_passes = {number}: the model has passes 1 to max_iter = {self.config.max_iter}")
        self.loop.n_passes = number

    def spectral_factors(self) -> list[tuple[str, nn.Parameter]]:
        """Every stack of orthonormal factors ``[..., m, r]`` of the model, with its name."""
        return spectral_factors(self)

    def forward(
        self,
        ids: Tensor,
        bounds: Tensor | None = None,
        state: LoopState | None = None,
        *,
        path: Path | None = None,
    ) -> LoopOutput:
        """Predict the byte after each byte.

        Args:
            ids: bytes ``[B, T]`` int64 in 0..255, ``T >= 1``.
            bounds: bool ``[B, T]``, True at the first byte of a document: nothing before it is read after it.
            state: carried state of the bytes before, from an earlier call.
            path: how routed experts are computed, see `RoutedExperts`; the model's own ``path`` if absent.

        Returns:
            Logits ``[B, T, 256]``, the carried state and the routing record.
        """
        state = state or self.initial_state(ids.shape[0])
        result = self.loop(self.embedding(ids), ids, bounds, state, path=path or self.path)
        deep = self.training and self.config.deep_supervision > 0
        read = self.norm(self.out_proj(_mean(result.hidden)))
        future = self.future_head if self.training else None
        return LoopOutput(
            logits=widened(self.lm_head(read))[0],
            future_logits=None if future is None else widened(future(read))[0],
            state=result.state,
            routing=_record(result.routing, ids.shape) if router_columns(self.config) > 1 else None,
            pass_logits=tuple(self.read_out(h) for h in result.hidden) if deep else (),
        )

    def read_out(self, h: Tensor) -> Tensor:
        """The one readout: hidden state ``[B, T, d]`` to logits ``[B, T, 256]``, fp32 at least."""
        return widened(self.lm_head(self.norm(self.out_proj(h))))[0]


def _mean(hidden: list[Tensor]) -> Tensor:
    total = hidden[0]
    for h in hidden[1:]:
        total = total + h
    return total / len(hidden)


def _record(passes: list[Routing | None], shape: torch.Size) -> RoutingRecord | None:
    """The routing of all passes; None where it was not kept."""
    routing = [r for r in passes if r is not None]
    if not routing:
        return None

    def stack(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors).view(len(tensors), *shape, -1)

    ids = [r.ids for r in routing if r.ids is not None]
    selected = [r.selected for r in routing if r.selected is not None]
    return RoutingRecord(
        logits=stack([r.logits for r in routing]),
        selected=stack(selected) if selected else None,
        probs=stack([r.probs for r in routing]),
        ids=stack(ids) if ids else None,
        gates=stack([r.gates for r in routing]),
    )


def _linear(d_in: int, d_out: int, config: ModelConfig, *, spectral: bool) -> nn.Module:
    if spectral:
        return SpectralLinear(d_in, d_out, config.rank, **_format(config))
    layer = nn.Linear(d_in, d_out)
    nn.init.normal_(layer.weight, std=d_in**-0.5)
    nn.init.zeros_(layer.bias)
    declare(layer, weight=Role.MATRIX, bias=Role.VECTOR)
    return layer


def _format(config: ModelConfig) -> dict:
    return {"weight_format": config.quant, "format_group": config.quant_group}


def _head(config: ModelConfig, *, spectral: bool) -> nn.Module:
    """A dense head starts at zero; a spectral one starts with small singular values, which its factors need to move."""
    if spectral:
        return SpectralLinear(config.d_model, VOCAB, config.rank, gain=0.1, **_format(config))
    head = nn.Linear(config.d_model, VOCAB)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    declare(head, weight=Role.EMBEDDING, bias=Role.VECTOR)
    return head
