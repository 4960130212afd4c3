"""What the network is: every key of the model, its default, its unit and its bounds, each written once.

The defaults are preset `small` of the original system, whose flat key names are kept so that its preset files
load as they are. A mechanism of the original that is not built in this version keeps its keys at a value that
means "off": the schema reads them, `unbuilt(config)` names those that are asked for, and the model and the
trainer refuse them. Rules that look at several keys are functions in `model_rules.py` and
`mechanism_rules.py`.
"""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from dormouse.config.model_rules import MODEL_RULES
from dormouse.config.section import Rule, Section

TsctPart = Literal["experts", "out_proj", "head"]


class ModelConfig(Section):
    """The model section (flat). Sizes are counts, weights of the loss are factors of nats per byte."""

    section: ClassVar[str] = "model"
    rules: ClassVar[tuple[Rule, ...]] = MODEL_RULES

    # Widths and the loop.
    d_model: int = Field(768, ge=1, description="width of the residual stream (channels)")
    n_heads: int = Field(12, ge=1, description="attention heads")
    head_dim: int = Field(64, ge=1, description="channels of one head; n_heads * head_dim = d_model")
    d_ffn: int = Field(2048, ge=1, description="hidden width of one expert (channels)")
    vocab: Literal[256] = Field(256, description="symbols; bytes, so always 256")
    max_seq_len: int = Field(512, ge=1, description="longest training or evaluation window (bytes)")
    max_iter: int = Field(4, ge=1, le=1024, description="passes through the shared block")
    rank: int = Field(64, ge=1, description="rank of a spectral layer; the head's is at most 256")
    norm_eps: float = Field(1e-3, gt=0, description="epsilon inside the root of every RMSNorm")
    layout: Literal["parallel", "sequential"] = Field(
        "parallel", description="branches summed from one normed input, or memory, attention, experts in turn"
    )
    deep_supervision: float = Field(
        0.0,
        ge=0,
        description="weight of the mean loss of the single passes, through the one norm and head (0 = off)",
    )

    # Attention.
    use_kda: bool = Field(True, description="Kimi delta attention in the attention slot")
    use_plain_attn: bool = Field(False, description="causal softmax attention instead (the control)")
    kda_conv_width: int = Field(1, ge=1, le=1024, description="taps of the causal convolution on q, k, v (1 = none)")
    kda_decay_rank: int = Field(64, ge=1, description="rank of the decay projection")
    kda_gate_rank: int | Literal["full"] = Field("full", description='rank of the output gate, or "full"')

    # Spectral layers.
    use_tsct: bool = Field(True, description="spectral layers U diag(s) V^T; off = dense with bias everywhere")
    tsct_parts: tuple[TsctPart, ...] = Field(
        ("experts", "out_proj", "head"),
        description="which parts are spectral when use_tsct; the others are dense",
    )

    # Memory.
    use_engram: bool = Field(True, description="hashed n-gram memory branch")
    engram_rows: int = Field(25_000, description="rows a table (order), rounded up to a power of two")
    engram_orders: tuple[int, ...] = Field((2, 3, 4), description="n-gram orders (bytes, the current one included)")
    engram_dim: int = Field(32, ge=1, description="numbers a row")
    engram_lam_max: float = Field(0.5, description="cap of the memory's share of its branch, in (0, 1]")
    engram_dense_half: bool = Field(True, description="the branch's other share is a dense d x d projection")
    engram_hash: Literal["fnv1a64", "original"] = Field(
        "fnv1a64", description="standard FNV-1a, or the original's keys (basis with a digit missing)"
    )

    # Experts and routing.
    n_experts: int = Field(3, ge=1, le=2**20, description="experts")
    moe_topk: int = Field(0, description="experts that run per byte and pass (0 = dense softmax blend of all)")
    moe_lb_coef: float = Field(0.0, description="weight of the balance term E * sum f_e P_e (0 = not computed)")
    moe_renormalize: bool = Field(False, description="divide the selected gates by their sum; refused at k = 1")
    moe_z_coef: float = Field(0.0, description="weight of the mean squared logsumexp of the router's logits (0 = off)")
    balance_per_pass: bool = Field(False, description="balance every pass by itself instead of all passes together")
    selection_bias: Literal["none", "loss_free", "quantile"] = Field(
        "none", description="rule of a bias on the scores that selects and never weighs"
    )
    selection_bias_rate: float | None = Field(
        None, gt=0, description="how far the bias moves a step (none = the rule's own: loss_free 0.001, quantile 0.5)"
    )
    moe_gate_scale: Literal["one", "n_experts", "unit"] = Field(
        "one", description="factor on every gate; unit makes a gate 1 where all logits are equal and zero"
    )
    router_score: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="what gates are made of: softmax over experts, or each expert's own sigmoid"
    )
    router_rank: int = Field(0, ge=0, description="rank of the router's matrix (0 = full)")
    router_per_pass: Literal["none", "bias", "columns"] = Field(
        "none", description="what of the router each pass has for itself, added to what they share"
    )
    router_noise: float = Field(
        0.0, ge=0, description="standard deviation of noise on the logits that select, in training"
    )
    n_null_experts: int = Field(0, ge=0, le=2**20, description="router columns that compute nothing when selected")
    n_shared_experts: int = Field(0, ge=0, le=2**20, description="experts of the same shape that always run")
    branch_gate_scale: float = Field(1.0, gt=0, description="factor on the sigmoid of the three branch gates")
    controller_norm: bool = Field(False, description="RMS-normalise both halves of the controller's input")

    # Number formats.
    quant: Literal["fp32", "bf16", "fp16", "fp8", "fp4", "int8", "int4", "ternary"] = Field(
        "fp32", description="format in which a forward pass sees the spectral factors (masters stay fp32)"
    )
    quant_group: int = Field(32, ge=0, description="numbers of a factor's row that share a scale (0 = the whole row)")
    act_quant: Literal["none", "8", "4", "fp4"] = Field("none", description="activation format")
    act_group: int = Field(0, ge=0, description="channels that share an activation scale (0 = one scale a byte)")
    bf16: bool = Field(False, description="activations stored in bf16")

    # The original's other mechanisms (not built).
    use_gr: bool = Field(False, description="gated residual with four branches")
    use_attnres: bool = Field(False, description="attention over earlier residual sources")
    use_mhc: bool = Field(False, description="manifold hyper-connections")
    mhc_streams: int = Field(4, ge=1, description="streams of mHC; divides d_model")
    use_situ: bool = Field(False, description="gated SiTU-GLU experts")
    use_msa: bool = Field(False, description="additional sparse softmax attention")
    msa_kb: int = Field(16, ge=1, description="key blocks a query may read")
    msa_q_heads: int = Field(4, ge=1, description="query heads of the sparse attention")
    msa_block_r: int = Field(4, ge=1, description="bytes in a key block")
    msa_head_dim: int = Field(32, ge=1, description="channels of a sparse-attention head")
    msa_distill_weight: float = Field(0.0, ge=0, description="weight of the indexer's distillation loss")
    use_mor: bool = Field(False, description="mixture of recursions: each byte chooses its passes")
    mor_k: int = Field(2, ge=1, description="passes a byte keeps; read only with use_mor")
    mor_bce_weight: float = Field(0.05, ge=0, description="weight of MoR's own loss; read only with use_mor")
    jepa_weight: float = Field(0.0, ge=0, description="weight of the latent prediction loss (the original: 0.05)")
    jepa_mask_frac: float = Field(0.15, ge=0, le=1, description="share of positions the JEPA loss looks at")
    jepa_mask_span: int = Field(8, ge=1, description="bytes of one JEPA span")
    dspark_weight: float = Field(0.0, ge=0, description="weight of the draft head's loss")
    dspark_k: int = Field(4, ge=1, description="bytes a draft looks ahead")
    dspark_stride: int = Field(16, description="bytes between two drafts")
    aux_fb_weight: float = Field(0.0, ge=0, description="weight of the future-byte head's loss")
    aux_fb_horizon: int = Field(2, description="bytes the future-byte head looks past the next one")

    # byteflow (not built; the original's default was true, here it is off unless asked for).
    use_byteflow: bool = Field(False, description="chunking network in place of, or around, the loop")
    byteflow_d_local: int = Field(96, ge=1, description="width of the byte-level stages")
    byteflow_d_global: int = Field(768, ge=1, description="width of the chunk-level stage")
    byteflow_k_tokens: int = Field(128, description="chunks a window")
    byteflow_e_layers: int = Field(2, ge=1, description="blocks in the encoder, and in the decoder")
    byteflow_g_layers: int = Field(2, ge=0, description="blocks of the chunk-level stage")
    byteflow_heads_local: int = Field(4, ge=1, description="heads of a byte-level block")
    byteflow_heads_global: int = Field(8, ge=1, description="heads of a chunk-level block")
    byteflow_w_local: int = Field(256, ge=1, description="attention window of a byte-level block (bytes)")
    byteflow_d_ff_local: int = Field(256, ge=1, description="hidden width of a byte-level block")
    byteflow_d_ff_global: int = Field(2048, ge=1, description="hidden width of a chunk-level block")
    byteflow_bins: int = Field(16, description="position bins of the upsampling")
    byteflow_eps2: float = Field(0.5, description="noise variance of the coding rate")
    byteflow_logdet: bool = Field(False, description="exact log-determinant rate instead of the norm's")
    byteflow_max_bytes: int = Field(512, ge=1, description="longest window byteflow takes (bytes)")

    @field_validator("tsct_parts", "engram_orders", mode="before")
    @classmethod
    def list_becomes_tuple(cls, value: object) -> object:
        """TOML and JSON have lists; the frozen section keeps tuples."""
        return tuple(value) if isinstance(value, list) else value

    @field_validator("act_quant", mode="before")
    @classmethod
    def bits_become_a_name(cls, value: object) -> object:
        """`act_quant = 8` and `act_quant = "8"` are the same format."""
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
