"""How a network is trained and on what: the `train` and `data` sections.

A run's length is either a number of optimiser steps or a number of minutes, never both and never neither.
Every cadence is a number of optimiser steps. Every fraction is a share of the run.
"""

from typing import ClassVar, Literal

from pydantic import Field

from dormouse.config.run_rules import DATA_RULES, TRAIN_RULES, unescape
from dormouse.config.section import Rule, Section


class TrainConfig(Section):
    """The train section; `steps` or `minutes` must be given, everything else has a default."""

    section: ClassVar[str] = "train"
    rules: ClassVar[tuple[Rule, ...]] = TRAIN_RULES

    steps: int | None = Field(None, ge=1, description="optimiser steps of the run; exactly one of steps and minutes")
    minutes: float | None = Field(None, gt=0, description="minutes of training; exactly one of steps and minutes")
    batch_size: int = Field(4, ge=1, le=2**20, description="sequences a forward pass")
    seq_len: int = Field(256, ge=1, description="bytes a sequence")
    grad_accum: int = Field(1, ge=1, le=2**20, description="forward passes an optimiser step")
    optimizer: Literal["muon", "adamw"] = Field("muon", description="muon: Muon on matrices and factors, AdamW else")
    lr: float = Field(3e-3, gt=0, description="peak learning rate of AdamW")
    muon_lr: float = Field(0.02, gt=0, description="peak learning rate of Muon; read only with optimizer = muon")
    table_lr: float = Field(1e-2, gt=0, description="peak learning rate of the memory tables (without decay)")
    weight_decay: float = Field(0.05, ge=0, description="decoupled weight decay")
    warmup_steps: int = Field(20, ge=0, description="steps over which the rate rises linearly from 0")
    decay_fraction: float = Field(0.6, ge=0, le=1, description="last share of the run in which the rate falls linearly")
    final_lr_fraction: float = Field(0.01, ge=0, le=1, description="rate at the end as a share of the peak")
    single_pass_fraction: float = Field(
        0.0, ge=0, lt=1, description="first share of the run that trains one pass, before all max_iter (0 = always all)"
    )
    random_depth: bool = Field(
        False, description="every step trains a number of passes drawn from 1 to max_iter, a function of seed and step"
    )
    grad_clip: float = Field(1.0, gt=0, description="largest global gradient norm")
    retract_every: int = Field(1, ge=0, description="steps between two retractions (0 = never)")
    retract_when: float = Field(
        0.0,
        ge=0,
        description="learning rate of the factors, summed over steps, at which they are retracted (0 = by steps)",
    )
    retraction: Literal["polar", "qr", "cholesky_qr"] = Field(
        "polar", description="which matrix with orthonormal columns a factor is replaced by"
    )
    retract_iters: int = Field(1, ge=1, description="Newton-Schulz iterations a retraction")
    latch_every: int = Field(500, ge=0, description="steps between two checks of the orthogonality latch (0 = never)")
    latch_ratio: float = Field(
        2.0,
        gt=1,
        description="error at which a factor leaves its format, over what rounding does to one (1e-3 at least)",
    )
    eval_every: int = Field(250, ge=0, description="steps between two evaluations (0 = only at the end)")
    eval_batches: int = Field(10, ge=1, description="batches of the evaluation window")
    eval_batch_size: int = Field(8, ge=1, description="sequences an evaluation batch")
    eval_seq_len: int = Field(512, ge=1, description="bytes an evaluation sequence")
    probe_every: int = Field(0, ge=0, description="steps between two probes of how alike the passes route (0 = off)")
    log_every: int = Field(10, ge=1, description="steps between two metric lines")
    save_every: int = Field(500, ge=0, description="steps between two checkpoints (0 = only at the end)")
    keep_checkpoints: int = Field(2, ge=1, description="newest checkpoints kept beside the best")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of every random number")
    moe_path: Literal["dispatch", "masked", "loop"] = Field(
        "dispatch", description="how selected experts are computed: only they, all and masked, or one by one"
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
        description="auto may fall back to the CPU, cuda may not",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads (none = the library's choice)")
    max_skips: int = Field(8, ge=1, description="non-finite steps in a row that stop the run")


class DataConfig(Section):
    """The data section: training corpus, held-out text, document separator, leakage."""

    section: ClassVar[str] = "data"
    rules: ClassVar[tuple[Rule, ...]] = DATA_RULES

    data: str = Field("shelf", min_length=1, description="built-in corpus name, or a file or folder")
    eval: str | None = Field(None, min_length=1, description="held-out file or folder (none = the corpus's own)")
    document_separator: str | None = Field(
        None,
        min_length=1,
        description="bytes after which a document starts, as escaped text such as \\n\\n or \\x00",
    )
    dedup: bool = Field(False, description="take out of the training text what also stands in the held-out text")

    def separator_bytes(self) -> bytes | None:
        """The separator as bytes (escapes resolved), or None when documents are not separated."""
        if self.document_separator is None:
            return None
        return unescape(self.document_separator)
