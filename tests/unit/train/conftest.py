"""Small stand-ins for model and optimiser, so that the trainer is tested on numbers known in advance."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dormouse.data.batch import Batch
from dormouse.model.records import LoopOutput, RoutingRecord
from dormouse.train.firewall import Firewall
from dormouse.train.latch import Latch
from dormouse.train.state import TrainState
from dormouse.train.tally import Tally


class Table(nn.Module):
    """Logits are a row per input byte; routes every byte to expert `input % 4` when `routed`."""

    def __init__(self, *, routed: bool = False, logits: torch.Tensor | None = None):
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(256, 256) if logits is None else logits)
        self.router = nn.Parameter(torch.randn(256, 4, generator=torch.Generator().manual_seed(1)))
        self.routed = routed

    def forward(self, ids, bounds=None, state=None):
        routing = None
        if self.routed:
            logits = self.router[ids][None]
            probs = logits.softmax(-1)
            chosen = probs.argmax(-1, keepdim=True)
            routing = RoutingRecord(logits=logits, probs=probs, ids=chosen, gates=probs.gather(-1, chosen))
        return LoopOutput(logits=self.rows[ids], state=None, routing=routing)

    def spectral_factors(self):
        return []


class PlainAdamW:
    """torch's AdamW behind the bundle's interface."""

    def __init__(self, model, lr=0.1, weight_decay=0.1):
        self.inner = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
        self.lr = lr

    def step(self, lr_scale):
        for group in self.inner.param_groups:
            group["lr"] = self.lr * lr_scale
        self.inner.step()

    def zero_grad(self):
        self.inner.zero_grad(set_to_none=True)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


def make_state(model, optimizer=None, max_skips=8):
    device = torch.device("cpu")
    return TrainState(
        model=model,
        optimizer=optimizer or PlainAdamW(model),
        device=device,
        firewall=Firewall(max_skips),
        latch=Latch(model, every=0, ratio=2.0),
        tally=Tally(device, n_experts=4, n_passes=getattr(model, "n_passes", 1)),
    )


def make_batch(inputs, targets, mask=None):
    inputs, targets = torch.tensor(inputs), torch.tensor(targets)
    kept = torch.ones_like(inputs, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    return Batch(inputs, targets, kept, None, torch.arange(len(inputs)))


class Tools:
    Table, PlainAdamW = Table, PlainAdamW
    state, batch = staticmethod(make_state), staticmethod(make_batch)


@pytest.fixture
def tools():
    return Tools


T0 = (
    *("d_model=16", "n_heads=1", "head_dim=16", "rank=4", "d_ffn=32", "max_iter=2", "kda_decay_rank=4"),
    *("kda_gate_rank=4", "engram_rows=64", "engram_dim=4", "n_experts=4", "moe_topk=1"),
)
T0_FLAGS = {
    "seq_len": 16,
    "batch_size": 2,
    "eval_seq_len": 16,
    "eval_batch_size": 2,
    "eval_batches": 2,
    "steps": 6,
    "single_pass_fraction": 0.0,
    "log_every": 1,
    "eval_every": 2,
    "save_every": 3,
    "threads": 1,
    "device": "cpu",
}


class RunTools:
    """Real runs of the smallest model on 40,000 bytes of made-up text."""

    def __init__(self, folder):
        self.folder = folder
        words = np.random.default_rng(5).choice([b"the ", b"cat ", b"sat. ", b"on\n", b"mat "], size=9000)
        (folder / "train.txt").write_bytes(b"".join(words)[:40_000])
        (folder / "held.txt").write_bytes(np.random.default_rng(6).bytes(2000))

    def config(self, *overrides, **flags):
        from dormouse.config.load import load_run_config

        places = {"data": str(self.folder / "train.txt"), "eval": str(self.folder / "held.txt")}
        return load_run_config("tiny", None, [*T0, *overrides], {**T0_FLAGS, **places, **flags})

    def begin(self, config, name="run", **options):
        from dormouse.store.rundir import RunDir
        from dormouse.train.run import Options, prepare, start

        return start(prepare(config), RunDir.create(self.folder / name), Options(**options))

    def go_on(self, config, name="run", said=None, **options):
        from dormouse.store.rundir import RunDir
        from dormouse.train.resume import resume
        from dormouse.train.run import Options, prepare

        directory = RunDir.open(self.folder / name)
        directory.lock()
        report = (lambda text: None) if said is None else said.append
        try:
            return resume(prepare(config), directory, Options(**options), report=report)
        except BaseException:
            directory.close()
            raise

    def train(self, run, *, stop_at=None, finish=False):
        """Run the loop to its end, or ask it to stop as if a signal had come after `stop_at` steps."""
        from dormouse.train.finish import finish as finish_run
        from dormouse.train.loop import train
        from dormouse.train.progress import SilentDisplay
        from dormouse.train.signals import StopRequest

        stop, hook = StopRequest(), run.settings.gradient_hook

        def watch(step, model):
            if hook is not None:
                hook(step, model)
            if step + 1 == stop_at:
                stop.signal = 2

        run.settings = replace(run.settings, gradient_hook=watch)
        try:
            outcome = train(run, SilentDisplay(), stop)
            result = finish_run(run, SilentDisplay()) if finish else None
        finally:
            run.close()
        return result if finish else outcome

    def content(self, name, step):
        """Digests of every part of a checkpoint but the clock."""
        from dormouse.store import checkpoint

        parts = checkpoint.manifest(self.folder / name / "checkpoints" / f"step_{step}")["content"]
        return {key: value for key, value in parts.items() if key != "clock"}

    def rows(self, name, kind=None):
        from dormouse.store.metrics import read_metrics

        rows = read_metrics(self.folder / name / "metrics.jsonl")
        return [row for row in rows if kind is None or row["kind"] == kind]


@pytest.fixture
def runs(tmp_path):
    return RunTools(tmp_path)
