"""A run, assembled: from a configuration and a directory to everything the loop needs.

The order matters. Whatever can be refused is refused before the directory is touched: mechanisms that are not
built, a device that is not there, corpus files, the schedule. Then the directory is taken, and only then are
generators seeded and the model built. A resumed run goes the same way and then replaces its fresh state
(`resume.py`).
"""

from dataclasses import dataclass
from functools import partial

import torch

from dormouse.config.flops import full_pass_cost
from dormouse.config.schema import ModelConfig, RunConfig
from dormouse.config.sizes import count_parts, total_parameters
from dormouse.config.unbuilt import unbuilt
from dormouse.data.corpus import Corpus, load_corpus
from dormouse.data.stream import TrainStream
from dormouse.data.window import EvalWindow
from dormouse.errors import ConfigError
from dormouse.model.lm import Dormouse
from dormouse.store.metrics import MetricsWriter
from dormouse.store.provenance import provenance
from dormouse.store.rundir import RunDir
from dormouse.train.balancer import Balancer
from dormouse.train.cadence import Cadence
from dormouse.train.firewall import Firewall
from dormouse.train.latch import Latch
from dormouse.train.machine import keep_large_blocks, memory_bytes, pick_device, seed_everything, set_threads
from dormouse.train.optim import build_optimizer
from dormouse.train.retract import retract
from dormouse.train.schedule import Schedule
from dormouse.train.state import Progress, TrainState
from dormouse.train.step import StepSettings
from dormouse.train.tally import Tally


@dataclass(frozen=True)
class Options:
    """What a user may switch on for one start of a run without making it another run."""

    audit: bool = False
    """Check at the end that every trainable tensor moved."""
    log_windows: bool = False
    """Write the numbers of the windows that every step reads."""
    log_passes: bool = False
    """Write the expert shares of every pass: passes x experts more numbers a log line."""


@dataclass(frozen=True)
class Prepared:
    """A request that has passed every check and has written nothing yet."""

    config: RunConfig
    corpus: Corpus
    device: torch.device
    schedule: Schedule
    threads: int
    notes: tuple[str, ...]
    """Sentences for the user: what was decided on their behalf."""


@dataclass
class Run:
    """Everything the loop needs."""

    config: RunConfig
    directory: RunDir
    state: TrainState
    stream: TrainStream
    window: EvalWindow
    corpus: Corpus
    schedule: Schedule
    cadence: Cadence
    settings: StepSettings
    metrics: MetricsWriter
    options: Options

    def close(self) -> None:
        """Release files and directory."""
        self.metrics.close()
        self.directory.close()


def prepare(config: RunConfig) -> Prepared:
    """Check everything that can be checked without writing; raises a `UsageError`."""
    if missing := unbuilt(config.model):
        raise ConfigError("\n".join(missing))
    refuse_oversized(config.model)
    device, note = pick_device(config.train.device)
    schedule = Schedule.from_config(config.train, full_cost=full_pass_cost(config.model))
    corpus = load_corpus(config.data, seq_len=config.train.seq_len, eval_seq_len=config.train.eval_seq_len)
    threads = set_threads(config.train.threads)
    keep_large_blocks()
    notes = (*((note,) if note else ()), *corpus.notes)
    return Prepared(config, corpus, device, schedule, threads, notes)


def refuse_oversized(config: ModelConfig) -> None:
    """Raise `ConfigError` for a network whose weights alone are more than the machine's memory."""
    needed, memory = 4 * total_parameters(config), memory_bytes()
    if memory is None or needed <= memory:
        return
    largest = max((part for part in count_parts(config) if part.built), key=lambda part: part.parameters)
    raise ConfigError(
        f"model: {needed / 2**30:.0f} GiB of weights, the machine has {memory / 2**30:.0f} GiB; it would have ended "
        f"the run while the network is made. Most of them are in {largest.name} ({largest.shape}); make it smaller."
    )


def start(prepared: Prepared, directory: RunDir, options: Options | None = None) -> Run:
    """A new run at step 0 in an owned, empty directory; writes run.json."""
    run = assemble(prepared, directory, options or Options())
    directory.write_run(record(run, prepared))
    return run


def make_window(corpus: Corpus, config: RunConfig, *, whole: bool = False) -> EvalWindow:
    """The scored window of a run, its size asserted; `whole` scores the entire held-out text instead."""
    train = config.train
    window = EvalWindow(
        corpus.held_out,
        batches=None if whole else train.eval_batches,
        batch_size=train.eval_batch_size,
        seq_len=train.eval_seq_len,
        separator=config.data.separator_bytes(),
    )
    expected = train.eval_batches * train.eval_batch_size * train.eval_seq_len
    if not whole and window.window_bytes != expected:
        raise RuntimeError(f"the window has {window.window_bytes} bytes, the configuration says {expected}")
    return window


def build_model(config: ModelConfig, *, seed: int) -> Dormouse:
    """A fresh model whose weights are a function of `seed`; seeds python, numpy and torch."""
    seed_everything(seed)
    return Dormouse(config)


def assemble(prepared: Prepared, directory: RunDir, options: Options) -> Run:
    """All parts at step 0."""
    config, corpus, device = prepared.config, prepared.corpus, prepared.device
    train, separator = config.train, config.data.separator_bytes()
    model = build_model(config.model, seed=train.seed).to(device)
    model.path = train.moe_path
    state = TrainState(
        model=model,
        optimizer=build_optimizer(model, train),
        device=device,
        firewall=Firewall(train.max_skips),
        latch=Latch(
            model, train.latch_every, train.latch_ratio, watch_fp32=train.retract_every > 0 or train.retract_when > 0
        ),
        tally=Tally(
            device, n_experts=config.model.n_experts, n_null=config.model.n_null_experts, n_passes=config.model.max_iter
        ),
        balancer=Balancer.from_model(model, config.model),
        progress=Progress(total_steps=train.steps),
    )
    stream = TrainStream(
        corpus.train, seq_len=train.seq_len, batch_size=train.batch_size, seed=train.seed, separator=separator
    )
    directory.checkpoints.mkdir(exist_ok=True)
    return Run(
        config=config,
        directory=directory,
        state=state,
        stream=stream,
        window=make_window(corpus, config),
        corpus=corpus,
        schedule=prepared.schedule,
        cadence=Cadence.from_config(train),
        settings=StepSettings.from_config(config, partial(retract, iters=train.retract_iters, method=train.retraction)),
        metrics=MetricsWriter(directory.metrics),
        options=options,
    )


def record(run: Run, prepared: Prepared) -> dict:
    """Content of run.json; touches nothing."""
    corpus, window, parameters = run.corpus, run.window, list(run.state.model.parameters())
    return {
        "schema": 1,
        "config": run.config.model_dump(mode="json"),
        "provenance": provenance(device=str(prepared.device), threads=prepared.threads),
        "data": {
            "name": corpus.name,
            "train_bytes": len(corpus.train),
            "train_sha256": corpus.train_sha256,
            "held_out_bytes": len(corpus.held_out),
            "held_out_sha256": corpus.held_out_sha256,
            "training_windows": run.stream.n_windows,
        },
        "window": {
            "bytes": window.window_bytes,
            "scored_bytes": window.scored_bytes,
            "seq_len": window.seq_len,
        },
        "parameters": {
            "total": sum(parameter.numel() for parameter in parameters),
            "parts": {part.name: part.parameters for part in count_parts(run.config.model) if part.built},
        },
        "notes": [*prepared.notes, *run.directory.notes],
    }
