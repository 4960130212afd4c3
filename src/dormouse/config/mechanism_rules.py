"""Rules of the mechanisms that are off by default: formats, residual rules, auxiliary heads, byteflow.

Same form as `model_rules.py`. A mechanism need not be built to be refused for a contradiction: a preset of
the original that its own system would have refused is refused here for the same reason.
"""

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dormouse.config.model_schema import ModelConfig


def activation_groups_divide_the_width(c: "ModelConfig") -> str | None:
    """act_group divides d_model (0 = one group)."""
    if c.act_group == 0 or c.d_model % c.act_group == 0:
        return None
    return (
        f"model.act_group = {c.act_group}: does not divide d_model = {c.d_model}; a last group of "
        f"{c.d_model % c.act_group} channels with its own scale would have run. Use a divisor of d_model, or "
        "0."
    )


def one_residual_rule(c: "ModelConfig") -> str | None:
    """At most one of gated residual, attention residuals and hyper-connections."""
    on = [key for key in ("use_gr", "use_attnres", "use_mhc") if getattr(c, key)]
    if len(on) < 2:
        return None
    named = ", ".join(f"model.{key} = true" for key in on)
    return (
        f"{named}: each replaces the residual rule, so only one of them would have run. Keep one of "
        f"{', '.join(on)} and set the others to false."
    )


def streams_divide_the_width(c: "ModelConfig") -> str | None:
    """mhc_streams divides d_model."""
    if not c.use_mhc or c.d_model % c.mhc_streams == 0:
        return None
    return (
        f"model.mhc_streams = {c.mhc_streams}: does not divide d_model = {c.d_model}; no such reshape would "
        "have run. Use a divisor of d_model, for example 4."
    )


def sparse_attention_is_sparse(c: "ModelConfig") -> str | None:
    """The block budget of sparse attention is smaller than the number of blocks."""
    blocks = ceil(c.max_seq_len / c.msa_block_r)
    if not c.use_msa or c.msa_kb < blocks:
        return None
    return (
        f"model.msa_kb = {c.msa_kb}: a window of {c.max_seq_len} bytes has {blocks} blocks of "
        f"{c.msa_block_r}, so dense attention would have run at the price of a selection. Use msa_kb below "
        f"{blocks}, or use_msa = false."
    )


def mor_keeps_at_most_all_passes(c: "ModelConfig") -> str | None:
    """mor_k <= max_iter."""
    if not c.use_mor or c.mor_k <= c.max_iter:
        return None
    return (
        f"model.mor_k = {c.mor_k}: a byte cannot keep {c.mor_k} of max_iter = {c.max_iter} passes; all "
        f"passes for every byte would have run. Use mor_k = {c.max_iter} or less, or raise max_iter."
    )


def drafts_have_a_stride(c: "ModelConfig") -> str | None:
    """dspark_stride >= 1."""
    if c.dspark_stride >= 1:
        return None
    return (
        f"model.dspark_stride = {c.dspark_stride}: drafts must be at least one byte apart; no draft would "
        "have been made. Use 1 or more (16 is the default), or dspark_weight = 0."
    )


def future_byte_lies_ahead(c: "ModelConfig") -> str | None:
    """aux_fb_horizon >= 1 when the head is on: horizon 0 is the byte that the main loss predicts."""
    if c.aux_fb_weight == 0 or c.aux_fb_horizon >= 1:
        return None
    return (
        f"model.aux_fb_horizon = {c.aux_fb_horizon} with model.aux_fb_weight = {c.aux_fb_weight}: the byte "
        "that the main loss already predicts would have been trained twice. Use a horizon of 1 or more, or "
        "aux_fb_weight = 0."
    )


def byteflow_stands_alone(c: "ModelConfig") -> str | None:
    """byteflow runs by itself or around the KDA loop, without any other mechanism."""
    if not c.use_byteflow:
        return None
    switches = (
        "use_engram",
        "use_plain_attn",
        "use_mor",
        "use_msa",
        "use_gr",
        "use_attnres",
        "use_mhc",
        "use_situ",
    )
    weights = ("jepa_weight", "dspark_weight", "aux_fb_weight", "msa_distill_weight", "moe_topk")
    on = [f"model.{key} = true" for key in switches if getattr(c, key)]
    on += [f"model.{key} = {getattr(c, key)}" for key in weights if getattr(c, key) > 0]
    if not on:
        return None
    return (
        f"model.use_byteflow = true with {', '.join(on)}: the chunking network has no place for these, so "
        "they would have been left out without a word. Set them to false or 0, or use_byteflow = false."
    )


def byteflow_shape_is_possible(c: "ModelConfig") -> str | None:
    """Chunks fit into the window, heads divide their widths, the rate's variance is positive."""
    if not c.use_byteflow:
        return None
    wrong = [
        text
        for text, bad in (
            (f"model.byteflow_k_tokens = {c.byteflow_k_tokens}, not 1 to {c.max_seq_len} (max_seq_len)",
             not 1 <= c.byteflow_k_tokens <= c.max_seq_len),
            (f"model.max_seq_len = {c.max_seq_len}, above byteflow_max_bytes = {c.byteflow_max_bytes}",
             c.max_seq_len > c.byteflow_max_bytes),
            (f"model.byteflow_bins = {c.byteflow_bins}, below 1", c.byteflow_bins < 1),
            (f"model.byteflow_eps2 = {c.byteflow_eps2}, not above 0", c.byteflow_eps2 <= 0),
            (f"model.byteflow_heads_local = {c.byteflow_heads_local}, no divisor of byteflow_d_local = "
             f"{c.byteflow_d_local}", c.byteflow_d_local % c.byteflow_heads_local != 0),
            (f"model.byteflow_heads_global = {c.byteflow_heads_global}, no divisor of byteflow_d_global = "
             f"{c.byteflow_d_global}", c.byteflow_d_global % c.byteflow_heads_global != 0),
        )
        if bad
    ]  # fmt: skip
    if not wrong:
        return None
    named = "; ".join(wrong)
    return f"{named}: no network of that shape would have run. Correct these, or set use_byteflow = false."


MECHANISM_RULES = (
    activation_groups_divide_the_width,
    one_residual_rule,
    streams_divide_the_width,
    sparse_attention_is_sparse,
    mor_keeps_at_most_all_passes,
    drafts_have_a_stride,
    future_byte_lies_ahead,
    byteflow_stands_alone,
    byteflow_shape_is_possible,
)
