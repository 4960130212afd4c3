"""How many parameters a configuration has, in closed form, part by part.

Every part of the original system is listed, with a flag that says whether this version builds it: a mechanism
that is switched off has no tensors here (the original builds and counts attention, memory and auxiliary heads
whatever the switches say), and some mechanisms are not built at all. The sum of the built parts is what
`Dormouse(config)` instantiates; the sum of all parts is the original's own total. A part that is not spectral
is an ordinary linear with bias. The sizes of gated residual, attention residuals, hyper-connections and
sparse attention are not known exactly and not listed; `unbuilt(config)` names these mechanisms.
"""

from dataclasses import dataclass
from math import ceil

from dormouse.config.model_schema import ModelConfig

BYTES = 256
GATES = 3


@dataclass(frozen=True)
class Part:
    """One part of the network.

    `tensors` counts matrices and vectors one by one; an expert's are stored stacked with those of the others,
    so that the module has fewer tensors than this.
    """

    name: str
    shape: str
    parameters: int
    tensors: int
    built: bool


def controller_columns(n_router: int) -> int:
    """Columns of the controller: three branch gates and the router's logits, padded to a multiple of 4."""
    return 4 * ceil((GATES + n_router) / 4)


def router_columns(config: ModelConfig) -> int:
    """Columns of the router: one an expert, and the null experts'."""
    return config.n_experts + config.n_null_experts


def controller_parts(config: ModelConfig, *, built: bool) -> list[Part]:
    """The controller, its router as one matrix or two thin ones, and what each pass has for itself."""
    wide, n, rank, passes = 2 * config.d_model, router_columns(config), config.router_rank, config.max_iter
    columns = controller_columns(0 if rank else n)
    parts = [Part("controller", f"{wide}x{columns}", wide * columns, 1, built)]
    if rank:
        parts.append(Part("low-rank router", f"{wide}x{rank}, {rank}x{n}", rank * (wide + n), 2, built))
    if config.router_per_pass == "bias":
        parts.append(Part("router bias by pass", f"{passes}x{n}", passes * n, 1, built))
    if config.router_per_pass == "columns":
        parts.append(Part("router columns by pass", f"{passes}x{wide}x{n}", passes * wide * n, 1, built))
    return parts


def table_rows(engram_rows: int) -> int:
    """Rows of one memory table: the next power of two."""
    return 1 << (engram_rows - 1).bit_length()


def spectral_parameters(d_in: int, d_out: int, rank: int) -> int:
    """Parameters of U [d_in, k], s [k], V [d_out, k] with k = min(rank, d_in, d_out)."""
    return min(rank, d_in, d_out) * (d_in + d_out + 1)


def is_spectral(config: ModelConfig, part: str) -> bool:
    """Whether `part` (experts, out_proj, head) is in spectral form."""
    return config.use_tsct and part in config.tsct_parts


def linear_part(config: ModelConfig, name: str, part: str, d_out: int, *, built: bool) -> Part:
    """A d_model -> `d_out` linear, spectral or dense with bias."""
    d = config.d_model
    if is_spectral(config, part):
        k = min(config.rank, d, d_out)
        return Part(name, f"U {d}x{k}, s {k}, V {d_out}x{k}", spectral_parameters(d, d_out, k), 3, built)
    return Part(name, f"{d}x{d_out} and bias", d * d_out + d_out, 2, built)


def expert_parameters(config: ModelConfig) -> int:
    """Parameters of one expert, down(SiLU(up(x)))."""
    d, f, up = config.d_model, config.d_ffn, config.d_ffn * (2 if config.use_situ else 1)
    if is_spectral(config, "experts"):
        return spectral_parameters(d, up, config.rank) + spectral_parameters(f, d, config.rank)
    return d * up + up + f * d + d


def expert_parts(config: ModelConfig, *, built: bool) -> list[Part]:
    """The routed experts, and those that always run."""
    parts = [expert_part(config, "experts", config.n_experts, built=built)]
    if config.n_shared_experts:
        parts.append(expert_part(config, "shared experts", config.n_shared_experts, built=built))
    return parts


def expert_part(config: ModelConfig, name: str, e: int, *, built: bool) -> Part:
    """A bank of e experts."""
    d, f, r = config.d_model, config.d_ffn, config.rank
    up = f * (2 if config.use_situ else 1)
    if is_spectral(config, "experts"):
        shape, tensors = f"{e} x (U {d}x{r}, s {r}, V {up}x{r}; U {f}x{r}, s {r}, V {d}x{r})", 6 * e
    else:
        shape, tensors = f"{e} x ({d}x{up} and bias; {f}x{d} and bias)", 4 * e
    return Part(name, shape, e * expert_parameters(config), tensors, built and not config.use_situ)


def kda_parts(config: ModelConfig, *, built: bool) -> list[Part]:
    """Kimi delta attention: projections, output gate, decay, beta, norm, convolution."""
    d, h, r = config.d_model, config.n_heads, config.kda_decay_rank
    gate, width = config.kda_gate_rank, config.kda_conv_width
    parts = [Part("KDA q, k, v, output", f"4 x {d}x{d}", 4 * d * d, 4, built)]
    if gate == "full":
        parts.append(Part("KDA output gate", f"{d}x{d}", d * d, 1, built))
    else:
        parts.append(Part("KDA output gate", f"{d}x{gate}, {gate}x{d}", 2 * d * gate, 2, built))
    parts += [
        Part("KDA decay, low rank", f"{d}x{r}, {r}x{d}", 2 * d * r, 2, built),
        Part("KDA decay bias", f"{d}", d, 1, built),
        Part("KDA A_log", f"{h}", h, 1, built),
        Part("KDA beta", f"{d}x{h}", d * h, 1, built),
        Part("KDA output norm", f"{config.head_dim}", config.head_dim, 1, built),
    ]
    if width > 1:
        parts.append(Part("KDA convolution on q, k, v", f"3 x {d}x{width}", 3 * d * width, 3, built))
    return parts


def attention_parts(config: ModelConfig, *, built: bool) -> list[Part]:
    """The attention slot: KDA is listed even when it is off, plain attention only when it is on."""
    d = config.d_model
    parts = kda_parts(config, built=built and config.use_kda)
    if config.use_plain_attn:
        parts.append(Part("plain attention q, k, v, output", f"4 x ({d}x{d} and bias)", 4 * (d * d + d), 8, built))
    return parts


def memory_parts(config: ModelConfig, *, built: bool) -> list[Part]:
    """Hashed n-gram memory and the dense half of its branch."""
    d, orders, dim = config.d_model, len(config.engram_orders), config.engram_dim
    on, rows = built and config.use_engram, orders * table_rows(config.engram_rows)
    parts = [
        Part("memory key and value", f"2 x {orders * dim}x{d}", 2 * orders * dim * d, 2, on),
        Part("memory table", f"{rows}x{dim}", rows * dim, 1, on),
    ]
    if config.engram_dense_half:
        parts.append(Part("memory dense half", f"{d}x{d}", d * d, 1, on))
    return parts


def loop_parts(config: ModelConfig, *, built: bool) -> list[Part]:
    """The looped network, first to last part."""
    d = config.d_model
    future = [Part("future-byte head", f"{d}x{BYTES} and bias", BYTES * d + BYTES, 2, built)]
    norms = ["loop norm"] if config.layout == "parallel" else ["loop norm", "experts' norm"]
    return [
        Part("embedding", f"{BYTES}x{d}", BYTES * d, 1, built),
        *controller_parts(config, built=built),
        *attention_parts(config, built=built),
        *expert_parts(config, built=built),
        *memory_parts(config, built=built),
        *(Part(name, f"{d}", d, 1, built) for name in norms),
        Part("iteration embedding", f"{config.max_iter}x{d}", config.max_iter * d, 1, built),
        Part("residual scalar", "1", 1, 1, built),
        linear_part(config, "out_proj", "out_proj", d, built=built),
        Part("final norm", f"{d}", d, 1, built),
        linear_part(config, "lm_head", "head", BYTES, built=built),
        *(future if config.aux_fb_weight > 0 else []),
    ]


def unbuilt_parts(config: ModelConfig) -> list[Part]:
    """Parts that the original constructs and this version does not."""
    d, r = config.d_model, config.rank
    draft = 2 * BYTES * r + 3 * r * (2 * r + d)
    parts = [
        Part("MoR router", f"{d} and bias", d + 1, 2, built=False),
        Part("JEPA predictor", f"norm {d}, {d}; {d}x{d}", 2 * d + d * d, 3, built=False),
        Part("draft head", f"{BYTES}x{r}, {r}x{BYTES}, {2 * r + d}x{3 * r}", draft, 3, built=False),
        Part("acceptance head", f"{d + r}x1", d + r, 1, built=False),
    ]
    return parts


def flow_blocks(name: str, count: int, d: int, ffn: int) -> Part:
    """`count` byteflow blocks: two norms, attention, gated FFN, two four-tap mixes (11 tensors each)."""
    return Part(name, f"{count} x block({d}, {ffn})", count * (4 * d * d + 3 * d * ffn + 12 * d), 11 * count, False)


def byteflow_parts(config: ModelConfig) -> list[Part]:
    """The chunking network: by itself, or around the loop (then the loop is its chunk-level stage)."""
    c, local, wide = config, config.byteflow_d_local, config.byteflow_d_global
    parts = [
        Part("byteflow embedding", f"{BYTES}x{local}", BYTES * local, 1, False),
        flow_blocks("byteflow encoder", c.byteflow_e_layers, local, c.byteflow_d_ff_local),
        Part("byteflow chunk projection", f"{local}x{wide}", local * wide, 1, False),
    ]
    if c.use_kda:
        parts.append(Part("byteflow to loop and back", f"2 x {wide}x{c.d_model}", 2 * wide * c.d_model, 2, False))
    else:
        parts.append(flow_blocks("byteflow chunk stage", c.byteflow_g_layers, wide, c.byteflow_d_ff_global))
    bins = c.byteflow_bins
    return [
        *parts,
        Part("byteflow upsampling", f"{bins}x{wide}x{local}", bins * wide * local, 1, False),
        flow_blocks("byteflow decoder", c.byteflow_e_layers, local, c.byteflow_d_ff_local),
        Part("byteflow head", f"{local}x{BYTES} and bias", local * BYTES + BYTES, 2, False),
    ]


def count_parts(config: ModelConfig) -> list[Part]:
    """Every part of the original at this configuration, and of this version, with `built` flags."""
    if not config.use_byteflow:
        return loop_parts(config, built=True) + unbuilt_parts(config)
    if not config.use_kda:
        return byteflow_parts(config)
    return loop_parts(config, built=False) + unbuilt_parts(config) + byteflow_parts(config)


def total_parameters(config: ModelConfig, *, built_only: bool = True) -> int:
    """Parameters that `Dormouse(config)` has; `built_only=False` adds the parts that are not built."""
    return sum(part.parameters for part in count_parts(config) if part.built or not built_only)


def memory_parameters(config: ModelConfig) -> int:
    """Numbers in the memory table that this version builds (0 when the memory is off)."""
    return sum(part.parameters for part in count_parts(config) if part.built and part.name == "memory table")
