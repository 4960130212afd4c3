"""What a completed run leaves: weights of the best checkpoint, a sample, and its result in run.json.

All of it can be made again from the checkpoints, and is: resuming a completed run repeats this step and
nothing else.
"""

from dataclasses import dataclass

from dormouse.model.generate import generate
from dormouse.model.lm import Dormouse
from dormouse.store import checkpoint
from dormouse.store.files import write_atomic
from dormouse.store.tensors import tensor_file
from dormouse.train.load import find_checkpoint, load_model
from dormouse.train.progress import Display
from dormouse.train.run import Run

SAMPLE_BYTES = 400
"""Length of the sample a completed run writes."""


@dataclass(frozen=True)
class Result:
    """A completed run in a few numbers; goes to run.json and to `--json`."""

    step: int
    """Step of the best checkpoint."""
    checkpoint: str
    bpb: float | None
    scored_bytes: int
    window_bytes: int
    data_sha256: str
    total_steps: int
    trained_bytes: int
    seconds: float
    skipped: int
    sample: str
    """Text the best checkpoint wrote (also in samples/)."""


def finish(run: Run, display: Display, *, sample_bytes: int = SAMPLE_BYTES) -> Result:
    """Write weights.safetensors, a sample of `sample_bytes` (0: none) and the result; returns the result."""
    path = find_checkpoint(run.directory, "best", report=display.say)
    details = checkpoint.manifest(path)
    model, _ = load_model(run.config.model, path)
    _write_weights(model, run, details["step"])
    sample = _write_sample(model, run, details["step"], sample_bytes)
    result = Result(
        step=details["step"],
        checkpoint=path.name,
        bpb=details.get("bpb"),
        scored_bytes=run.window.scored_bytes,
        window_bytes=run.window.window_bytes,
        data_sha256=run.corpus.held_out_sha256,
        total_steps=run.state.progress.step,
        trained_bytes=run.state.progress.trained_bytes,
        seconds=run.state.elapsed_seconds,
        skipped=run.state.firewall.skipped,
        sample=sample,
    )
    run.directory.write_run(run.directory.read_run() | {"result": vars(result)})
    return result


def _write_weights(model: Dormouse, run: Run, step: int) -> None:
    """The weights alone, contiguous, and in the file's metadata how they are used; complete or absent."""
    metadata = {
        "format": "pt",
        "step": str(step),
        "n_passes": str(model.n_passes),
        "model_config": run.config.model.model_dump_json(),
        "train_data_sha256": run.corpus.train_sha256,
    }
    write_atomic(run.directory.weights, tensor_file(model.state_dict(), metadata))


def _write_sample(model: Dormouse, run: Run, step: int, number: int) -> str:
    """What the model writes after nothing, seeded by the run; returned with undecodable bytes replaced."""
    if number == 0:
        return ""
    text = b"".join(generate(model, b"", number, seed=run.config.train.seed))
    run.directory.samples.mkdir(exist_ok=True)
    write_atomic(run.directory.samples / f"step_{step}.txt", text)
    return text.decode("utf-8", errors="replace")
