"""Rules of experts and routing; same form as `model_rules.py`.

What has a meaning for selected experts alone is refused with the dense blend (`moe_topk = 0`): it would have been
written into the run's record and done nothing.
"""

from typing import TYPE_CHECKING

from dormouse.config.problems import shown

if TYPE_CHECKING:
    from dormouse.config.model_schema import ModelConfig


def topk_is_between_0_and_n_experts(c: "ModelConfig") -> str | None:
    """0 <= moe_topk <= n_experts (S6, DM-05)."""
    if 0 <= c.moe_topk <= c.n_experts:
        return None
    instead = "the dense blend" if c.moe_topk < 0 else f"all {c.n_experts} experts for every byte"
    return (
        f"model.moe_topk = {c.moe_topk}: cannot select {c.moe_topk} of n_experts = {c.n_experts} experts; "
        f"clamped, it would have run {instead}. Use 1 to {c.n_experts} to route, 0 for the dense blend, or "
        "raise n_experts."
    )


def router_coefficients_are_not_negative(c: "ModelConfig") -> str | None:
    """moe_lb_coef >= 0 (S6), moe_z_coef >= 0."""
    if c.moe_lb_coef < 0:
        return (
            f"model.moe_lb_coef = {c.moe_lb_coef}: a negative coefficient would have rewarded collapse onto one "
            "expert. Use 0 for no balance term, or a positive number such as 0.01."
        )
    if c.moe_z_coef < 0:
        return (
            f"model.moe_z_coef = {c.moe_z_coef}: a negative coefficient would have rewarded logits that grow without "
            "bound. Use 0 for no such term, or a positive number such as 0.001."
        )
    return None


def balance_needs_routing(c: "ModelConfig") -> str | None:
    """What balances or bends a selection has nothing to do while every expert runs (S6)."""
    if c.moe_topk != 0:
        return None
    off: dict[str, tuple[object, str]] = {
        "moe_lb_coef": (0, "a balance term"),
        "moe_z_coef": (0, "a term for its logits"),
        "selection_bias": ("none", "a selection bias"),
        "router_score": ("softmax", "sigmoid gates"),
        "router_noise": (0, "noise"),
        "n_null_experts": (0, "null experts"),
    }
    for key, (value, what) in off.items():
        if (found := getattr(c, key)) != value and not (isinstance(found, float) and found < 0):
            return (
                f"model.{key} = {shown(found)}: routing is off (moe_topk = 0), so the dense blend would have run "
                f"without {what}. Set moe_topk between 1 and n_experts = {c.n_experts}, or {key} = {shown(value)}."
            )
    return None


def selection_bias_has_a_choice(c: "ModelConfig") -> str | None:
    """A bias selects nothing where every column is selected."""
    if c.selection_bias == "none" or c.moe_topk == 0 or c.moe_topk < c.n_experts + c.n_null_experts:
        return None
    return (
        f"model.selection_bias = {shown(c.selection_bias)} with model.moe_topk = {c.moe_topk}: all n_experts = "
        f"{c.n_experts} are selected for every byte, so a bias that changes nothing would have run. Lower moe_topk, "
        'or use selection_bias = "none".'
    )


def router_rank_is_low(c: "ModelConfig") -> str | None:
    """router_rank is below the number of router columns and at most 2 d_model."""
    columns = c.n_experts + c.n_null_experts
    if c.router_rank == 0 or c.router_rank < min(columns, 2 * c.d_model):
        return None
    return (
        f"model.router_rank = {c.router_rank}: the router's matrix is {columns} x {2 * c.d_model}, and a product of "
        "that rank costs more than the matrix itself. Use a rank below both, or 0 for the full matrix."
    )


def top1_gate_is_not_renormalised(c: "ModelConfig") -> str | None:
    """At k = 1 a renormalised gate is the constant 1 and the router never learns (T11, DM-07)."""
    if not (c.moe_renormalize and c.moe_topk == 1):
        return None
    return (
        "model.moe_renormalize = true with model.moe_topk = 1: the one gate divided by itself is 1, so a "
        "router that gets no gradient from the loss would have run. Set moe_renormalize = false, or moe_topk "
        "= 2 or more."
    )


ROUTING_RULES = (
    topk_is_between_0_and_n_experts,
    router_coefficients_are_not_negative,
    balance_needs_routing,
    top1_gate_is_not_renormalised,
    selection_bias_has_a_choice,
    router_rank_is_low,
)
