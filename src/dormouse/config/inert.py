"""Settings that were changed and have no effect: said aloud, so that no knob is turned in vain.

Each entry of the table says which keys one condition alone reads. A preset of the original carries many such
keys (a memory size with the memory off), so they are announced, not refused.
"""

from collections.abc import Callable

from dormouse.config.problems import shown
from dormouse.config.schema import SECTIONS, ModelConfig, RunConfig, TrainConfig
from dormouse.config.section import Section

_ENGRAM = ("engram_rows", "engram_orders", "engram_dim", "engram_lam_max", "engram_dense_half", "engram_hash")
_KDA = ("kda_conv_width", "kda_decay_rank", "kda_gate_rank")
_ROUTING = (
    *("moe_topk", "moe_lb_coef", "moe_z_coef", "moe_gate_scale", "selection_bias"),
    *("router_score", "router_rank", "router_per_pass", "router_noise"),
)
_MSA = ("msa_kb", "msa_q_heads", "msa_block_r", "msa_head_dim")


def _retracts(config: RunConfig) -> bool:
    return config.model.use_tsct and (config.train.retract_every > 0 or config.train.retract_when > 0)


MODEL_READERS: tuple[tuple[tuple[str, ...], str, Callable[[ModelConfig], bool]], ...] = (
    (_ENGRAM, "use_engram = false", lambda c: c.use_engram),
    (_KDA, "use_kda = false", lambda c: c.use_kda),
    (("rank", "tsct_parts", "quant"), "use_tsct = false", lambda c: c.use_tsct),
    (("moe_renormalize",), "moe_topk = 0, and a full softmax sums to one", lambda c: c.moe_topk > 0),
    (
        _ROUTING,
        "n_experts = 1, and the gate of a single expert is always 1",
        lambda c: c.n_experts + c.n_null_experts > 1,
    ),
    (("selection_bias_rate",), 'selection_bias = "none"', lambda c: c.selection_bias != "none"),
    (
        ("balance_per_pass",),
        "neither moe_lb_coef nor selection_bias balances anything",
        lambda c: c.moe_lb_coef > 0 or c.selection_bias != "none",
    ),
    (("balance_per_pass", "router_per_pass"), "max_iter = 1", lambda c: c.max_iter > 1),
    (("quant_group",), 'quant is "fp32", "bf16" or "fp16"', lambda c: c.quant not in ("fp32", "bf16", "fp16")),
    (("act_group",), 'act_quant = "none"', lambda c: c.act_quant != "none"),
    (("mhc_streams",), "use_mhc = false", lambda c: c.use_mhc),
    (_MSA, "use_msa = false", lambda c: c.use_msa),
    (("mor_k", "mor_bce_weight"), "use_mor = false", lambda c: c.use_mor),
    (("jepa_mask_frac", "jepa_mask_span"), "jepa_weight = 0", lambda c: c.jepa_weight > 0),
    (("dspark_k", "dspark_stride"), "dspark_weight = 0", lambda c: c.dspark_weight > 0),
    (("aux_fb_horizon",), "aux_fb_weight = 0", lambda c: c.aux_fb_weight > 0),
    (
        tuple(key for key in ModelConfig.model_fields if key.startswith("byteflow_")),
        "use_byteflow = false",
        lambda c: c.use_byteflow,
    ),
)
TRAIN_READERS: tuple[tuple[tuple[str, ...], str, Callable[[RunConfig], bool]], ...] = (
    (("moe_path",), "moe_topk = 0: every expert runs for every byte", lambda c: c.model.moe_topk > 0),
    (("random_depth",), "max_iter = 1", lambda c: c.model.max_iter > 1),
    (("single_pass_fraction",), "max_iter = 1", lambda c: c.model.max_iter > 1),
    (("probe_every",), "n_experts = 1, and nothing is routed", lambda c: c.model.n_experts > 1),
    (("muon_lr",), 'optimizer = "adamw"', lambda c: c.train.optimizer == "muon"),
    (("table_lr",), "use_engram = false", lambda c: c.model.use_engram),
    (("retract_when", "latch_every"), "use_tsct = false", lambda c: c.model.use_tsct),
    (("retract_every",), "use_tsct = false", lambda c: c.model.use_tsct),
    (("retract_every",), "retract_when > 0 decides", lambda c: c.train.retract_when == 0),
    (("retraction",), "no factor is ever retracted", _retracts),
    (
        ("latch_ratio",),
        'quant = "fp32", or the latch is off',
        lambda c: c.model.quant != "fp32" and c.train.latch_every > 0,
    ),
    (("final_lr_fraction",), "decay_fraction = 0", lambda c: c.train.decay_fraction > 0),
    (("retract_iters",), "no factor is ever retracted", _retracts),
    (("retract_iters",), 'retraction is not "polar"', lambda c: c.train.retraction == "polar"),
)


def _changed(section: Section, key: str) -> bool:
    return getattr(section, key) != SECTIONS[section.section].defaults()[key]


def _said(section: Section, keys: tuple[str, ...], why: str) -> list[str]:
    return [f"{key} = {shown(getattr(section, key))} has no effect: {why}." for key in keys if _changed(section, key)]


def inert_model_settings(config: ModelConfig) -> list[str]:
    """One sentence per changed model key that nothing reads in this configuration."""
    return [line for keys, why, read in MODEL_READERS if not read(config) for line in _said(config, keys, why)]


def warm_up_note(train: TrainConfig) -> list[str]:
    """A run that ends before its warm-up never reaches its learning rate."""
    if train.steps is None or train.warmup_steps < train.steps:
        return []
    return [f"warmup_steps = {train.warmup_steps} with steps = {train.steps}: the full rate is never reached."]


def gate_note(model: ModelConfig) -> list[str]:
    """Even shares are no proof of use: a bias selects experts whose softmax gate may be next to nothing."""
    if model.selection_bias == "none":
        return []
    both = (
        f"moe_lb_coef = {model.moe_lb_coef} beside selection_bias: two things balance at once; 0 leaves the bias alone."
    )
    notes = [both] if model.moe_lb_coef > 0 else []
    if model.router_score != "softmax":
        return notes
    return [
        *notes,
        f"selection_bias = {shown(model.selection_bias)} with softmax gates: shares become even while the gates of "
        'experts that the bias pushes may go to zero. Watch gate= beside moe=, or use router_score = "sigmoid".',
    ]


def inert_settings(config: RunConfig) -> list[str]:
    """One sentence per changed key that nothing reads here, and per rate that is never reached; and what to watch."""
    train = [line for keys, why, read in TRAIN_READERS if not read(config) for line in _said(config.train, keys, why)]
    return inert_model_settings(config.model) + gate_note(config.model) + train + warm_up_note(config.train)
