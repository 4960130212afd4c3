"""What a configuration costs: operations of the matrix products, a multiply-add counted as two.

Costs are per byte. `per_pass` is paid in each of the `max_iter` passes, `once` a forward. Elementwise work
(norms, gates, activations, hashing, table look-ups) is not counted. A training step costs about three times
the forward.
"""

from dataclasses import dataclass

from dormouse.config.model_schema import ModelConfig
from dormouse.config.sizes import BYTES, controller_columns, is_spectral, router_columns
from dormouse.config.train_schema import TrainConfig


@dataclass(frozen=True)
class Cost:
    """Operations a byte of one part of the network."""

    name: str
    per_pass: int
    once: int = 0


def dense_expert_flops(config: ModelConfig) -> int:
    """Two dense products d -> f -> d: 4 d f a byte."""
    return 4 * config.d_model * config.d_ffn


def expert_flops(config: ModelConfig) -> int:
    """One expert: 4 r (d + f) a byte in spectral form (four thin products), else the dense cost."""
    if not is_spectral(config, "experts"):
        return dense_expert_flops(config)
    return 4 * config.rank * (config.d_model + config.d_ffn)


def active_experts(config: ModelConfig) -> int:
    """Experts that run for a byte in a pass: k, or all of them in the dense blend, and the shared ones.

    Null experts count as if an expert ran: how often they are selected is known after training.
    """
    return (config.moe_topk or config.n_experts) + config.n_shared_experts


def controller_flops(config: ModelConfig) -> int:
    """Gates and router logits from ``[c ; h0]``, padding included."""
    wide, n, rank = 2 * config.d_model, router_columns(config), config.router_rank
    own = 2 * wide * n if config.router_per_pass == "columns" else 0
    low = 2 * rank * (wide + n)
    return 2 * wide * controller_columns(0 if rank else n) + low + own


def linear_flops(config: ModelConfig, part: str, d_out: int) -> int:
    """A d_model -> `d_out` product, spectral or dense."""
    d = config.d_model
    if is_spectral(config, part):
        return 2 * min(config.rank, d, d_out) * (d + d_out)
    return 2 * d * d_out


def kda_flops(config: ModelConfig) -> int:
    """Projections, convolution, and the recurrence (7 operations an entry of a head's state)."""
    d, r, gate = config.d_model, config.kda_decay_rank, config.kda_gate_rank
    gate_weights = d * d if gate == "full" else 2 * d * gate
    taps = config.kda_conv_width if config.kda_conv_width > 1 else 0
    weights = 4 * d * d + gate_weights + 2 * d * r + d * config.n_heads + 3 * d * taps
    return 2 * weights + 7 * config.n_heads * config.head_dim**2


def plain_attention_flops(config: ModelConfig, context: int) -> int:
    """Four projections, and scores and sums over half of `context` bytes on average."""
    return 8 * config.d_model**2 + 2 * config.d_model * (context + 1)


def flops_per_byte(config: ModelConfig, *, context: int | None = None) -> list[Cost]:
    """Cost of every built part; `context` (bytes, default max_seq_len) matters to plain attention only."""
    if config.use_byteflow:
        return []
    d, once = config.d_model, config.deep_supervision == 0
    costs = [Cost("controller", controller_flops(config))]
    if config.use_kda:
        costs.append(Cost("KDA", kda_flops(config)))
    if config.use_plain_attn:
        costs.append(Cost("plain attention", plain_attention_flops(config, context or config.max_seq_len)))
    if config.use_engram:
        projections = 4 * len(config.engram_orders) * config.engram_dim * d
        costs.append(Cost("memory", 2 * d + (2 * d * d if config.engram_dense_half else 0), projections))
    costs.append(Cost("experts", active_experts(config) * expert_flops(config)))
    for name, flops in (
        ("out_proj", linear_flops(config, "out_proj", d)),
        ("lm_head", linear_flops(config, "head", BYTES)),
    ):
        costs.append(Cost(name, 0 if once else flops, flops))
    return costs


def forward_flops(config: ModelConfig, *, context: int | None = None) -> int:
    """Operations a byte of one whole forward, all passes."""
    return sum(cost.per_pass * config.max_iter + cost.once for cost in flops_per_byte(config, context=context))


def full_pass_cost(config: ModelConfig) -> float:
    """Cost of a forward with all `max_iter` passes over that of one with a single pass (1 when nothing is priced)."""
    costs = flops_per_byte(config)
    once, in_each = sum(cost.once for cost in costs), sum(cost.per_pass for cost in costs)
    return (in_each * config.max_iter + once) / (in_each + once) if costs else 1.0


def spectral_factor_shapes(config: ModelConfig) -> dict[tuple[int, int], int]:
    """How many orthonormal factors there are of each shape (rows, rank): U and V of every spectral layer."""
    d, f, r = config.d_model, config.d_ffn, config.rank
    experts = config.n_experts + config.n_shared_experts if is_spectral(config, "experts") else 0
    layers = [(d, f)] * experts + [(f, d)] * experts
    layers += [(d, d)] if is_spectral(config, "out_proj") else []
    layers += [(d, BYTES)] if is_spectral(config, "head") else []
    shapes: dict[tuple[int, int], int] = {}
    for d_in, d_out in layers:
        k = min(r, d_in, d_out)
        for rows in (d_in, d_out):
            shapes[rows, k] = shapes.get((rows, k), 0) + 1
    return shapes


def retraction_flops(config: ModelConfig, *, iters: int) -> int:
    """One retraction of all factors with `iters` Newton-Schulz iterations on the factors themselves.

    A factor [m, k] costs 2 k^2 m for the first Gram matrix and 4 k^2 m + 2 k^3 an iteration: 14 k^2 m + 6 k^3
    at three. It is the original's arithmetic; `gram_retraction_flops` is what runs.
    """
    return sum(
        count * ((2 + 4 * iters) * k * k * m + 2 * iters * k**3)
        for (m, k), count in spectral_factor_shapes(config).items()
    )


def gram_retraction_flops(config: ModelConfig, *, iters: int) -> int:
    """One retraction of all factors in Gram space: two products with the long side, the rest k x k.

    A factor [m, k] costs 4 k^2 m, a square of 2 k^3 an iteration and three more k x k products between two.
    """
    return sum(
        count * (4 * k * k * m + (2 * iters + 6 * (iters - 1)) * k**3)
        for (m, k), count in spectral_factor_shapes(config).items()
    )


def retraction_flops_per_step(model: ModelConfig, train: TrainConfig) -> int:
    """Operations that the polar retraction adds to a step, averaged over `retract_every` steps (0 when it is off).

    With `retract_when` the cadence follows the learning rate; then the figure is that of a step that retracts.
    """
    if train.retract_every == 0 and train.retract_when == 0:
        return 0
    each = gram_retraction_flops(model, iters=train.retract_iters)
    return each if train.retract_when else round(each / train.retract_every)
