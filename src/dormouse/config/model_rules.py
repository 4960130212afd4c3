"""Rules of the model section: one small function a rule, named after what it demands.

A rule takes the section and returns None, or one sentence that names the field, its value, what would have
run instead, and the way out. All broken rules are reported together. Rules of the router are in
`routing_rules.py`, those of mechanisms that are off by default in `mechanism_rules.py`.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from dormouse.config.mechanism_rules import MECHANISM_RULES
from dormouse.config.routing_rules import ROUTING_RULES

if TYPE_CHECKING:
    from dormouse.config.model_schema import ModelConfig


def heads_fill_the_width(c: "ModelConfig") -> str | None:
    """n_heads * head_dim = d_model."""
    width = c.n_heads * c.head_dim
    if width == c.d_model:
        return None
    return (
        f"model.n_heads = {c.n_heads}, model.head_dim = {c.head_dim}: together {width} channels, but "
        f"model.d_model = {c.d_model}; no projection of that shape would have run. Set head_dim * n_heads = "
        f"d_model, for example d_model = {width}."
    )


def one_mixer_fills_the_attention_slot(c: "ModelConfig") -> str | None:
    """Plain attention and KDA exclude one another."""
    if not (c.use_kda and c.use_plain_attn):
        return None
    return (
        "model.use_plain_attn = true with model.use_kda = true: one attention slot, so only one of them "
        "would have run. Set use_kda = false for the plain control, or use_plain_attn = false."
    )


def rope_has_pairs(c: "ModelConfig") -> str | None:
    """Rotary embedding turns pairs of channels; plain attention needs an even head."""
    if not c.use_plain_attn or c.head_dim % 2 == 0:
        return None
    return (
        f"model.head_dim = {c.head_dim} with model.use_plain_attn = true: rotary embedding turns pairs of "
        f"channels, so one channel a head would have stayed unrotated. Use an even head_dim, for example "
        f"{c.head_dim + 1}."
    )


def rank_fits_the_matrices(c: "ModelConfig") -> str | None:
    """A spectral layer has at most min(d_model, d_ffn) orthonormal columns (the head has at most 256)."""
    widest = min(c.d_model, c.d_ffn) if "experts" in c.tsct_parts else c.d_model
    if not c.use_tsct or c.rank <= widest:
        return None
    return (
        f"model.rank = {c.rank}: a factor of {widest} rows has at most {widest} orthonormal columns; "
        f"clamped, rank = {widest} would have run. Use rank = {widest} or less."
    )


def spectral_parts_are_named_once(c: "ModelConfig") -> str | None:
    """tsct_parts holds each part at most once, and at least one when spectral layers are on."""
    if len(set(c.tsct_parts)) != len(c.tsct_parts):
        return (
            f"model.tsct_parts = {list(c.tsct_parts)}: a part is named twice; the second would have had no "
            "effect. Name each of experts, out_proj, head at most once."
        )
    if c.use_tsct and not c.tsct_parts:
        return (
            "model.tsct_parts = [] with model.use_tsct = true: no part is spectral, so the dense network "
            "would have run under the name of the spectral one. Set use_tsct = false, or name a part."
        )
    return None


def low_ranks_are_below_the_width(c: "ModelConfig") -> str | None:
    """Ranks of KDA's decay and gate are at most d_model, and the gate's is at least 1."""
    ranks = {"kda_decay_rank": c.kda_decay_rank, "kda_gate_rank": c.kda_gate_rank}
    for key, rank in ranks.items():
        if isinstance(rank, int) and not 1 <= rank <= c.d_model:
            return (
                f"model.{key} = {rank}: a product of that rank is not a low-rank form of a {c.d_model} x "
                f"{c.d_model} matrix; more numbers than the full matrix, or none, would have run. Use 1 to "
                f"{c.d_model}" + ("." if key == "kda_decay_rank" else ', or "full".')
            )
    return None


def memory_has_rows(c: "ModelConfig") -> str | None:
    """engram_rows >= 1."""
    if c.engram_rows >= 1:
        return None
    return (
        f"model.engram_rows = {c.engram_rows}: rounded up to a power of two, a table of 1 row shared by all "
        "n-grams would have run. Use 1 or more rows, or use_engram = false to remove the memory."
    )


def memory_cap_is_a_share(c: "ModelConfig") -> str | None:
    """0 < engram_lam_max <= 1."""
    if 0 < c.engram_lam_max <= 1:
        return None
    instead = "a memory that is never read" if c.engram_lam_max <= 0 else "a negative share of the dense half"
    return (
        f"model.engram_lam_max = {c.engram_lam_max}: the memory's cap is a share in (0, 1]; {instead} would "
        "have run. Use a number above 0 and at most 1, or use_engram = false to remove the memory."
    )


def memory_orders_rise_from_2_to_8(c: "ModelConfig") -> str | None:
    """engram_orders: at least one, strictly increasing, each within 2..8."""
    orders = c.engram_orders
    rising = all(a < b for a, b in pairwise(orders))
    if orders and rising and all(2 <= order <= 8 for order in orders):
        return None
    return (
        f"model.engram_orders = {list(orders)}: orders must rise strictly within 2 to 8, at least one; a "
        "table read twice, never, or by whole lines would have run. Use for example [2, 3, 4], or use_engram "
        "= false."
    )


MODEL_RULES = (
    heads_fill_the_width,
    *ROUTING_RULES,
    one_mixer_fills_the_attention_slot,
    rope_has_pairs,
    rank_fits_the_matrices,
    spectral_parts_are_named_once,
    low_ranks_are_below_the_width,
    memory_has_rows,
    memory_cap_is_a_share,
    memory_orders_rise_from_2_to_8,
    *MECHANISM_RULES,
)
