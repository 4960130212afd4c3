"""What a completed run leaves: weights of the best checkpoint, a sample, and its result in run.json.

All of it can be made again from the checkpoints, and is: resuming a completed run repeats this step and
nothing else.
"""

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from dormouse.model.generate import generate
from dormouse.model.lm import Dormouse
from dormouse.store import checkpoint
from dormouse.store.files import sync_folder, write_atomic
from dormouse.train.load import find_checkpoint, load_model
from dormouse.train.progress import Display
from dormouse.train.run import Run

_SAMPLE_BYTES = 400


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


def finish(run: Run, display: Display) -> Result:
    """Write weights.safetensors, samples/ and the result; returns the result."""
    path = find_checkpoint(run.directory, "best", report=display.say)
    details = checkpoint.manifest(path)
    model = load_model(run.config.model, path)
    _write_weights(model.state_dict(), run.directory.weights, run, details["step"])
    sample = _write_sample(model, run.directory.samples, details["step"], run.config.train.seed)
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


def _write_weights(weights: dict, path: Path, run: Run, step: int) -> None:
    """The weights alone, contiguous, with the configuration in the file's metadata; complete or absent."""
    temporary = path.with_name(f".{path.name}.tmp")
    metadata = {
        "format": "pt",
        "step": str(step),
        "model_config": run.config.model.model_dump_json(),
        "train_data_sha256": run.corpus.train_sha256,
    }
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in weights.items()}, temporary, metadata=metadata
    )
    temporary.replace(path)
    sync_folder(path.parent)


def _write_sample(model: Dormouse, folder: Path, step: int, seed: int) -> str:
    """A continuation of nothing, seeded by the run; returns it with undecodable bytes replaced."""
    text = b"".join(generate(model, b"", _SAMPLE_BYTES, seed=seed))
    folder.mkdir(exist_ok=True)
    write_atomic(folder / f"step_{step}.txt", text)
    return text.decode("utf-8", errors="replace")
