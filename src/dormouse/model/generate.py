"""Text from a model that carries its state: the prompt once, then one byte at a time at constant cost.

The prompt runs through the model in chunks of a fixed length, so memory does not grow with it and nothing of
it is cut off: a prompt longer than the training window is read to its end. What the model needs from the past
lives in its `LoopState` (one memory per pass through the shared block, the last bytes for the n-grams), so
each further byte is one forward pass over one position, however much came before. The byte that was chosen is
handed out before the model reads it.

An empty prompt: the model starts from a fresh state and reads one newline that is not part of the output. It
needs some byte to predict from, and what comes after a newline is the beginning of a line.

Several prompts run as one batch. Shorter ones are padded on the left, and the first real byte is marked as
the start of a document, which clears whatever the padding left behind. Row i draws from its own generator,
seeded with seed + i.

With `utf8=True` the output on its own is valid UTF-8 and is handed out in whole characters, so stopping early
leaves valid text too; bytes that would break this, or begin a character that no longer fits, are never drawn.
If the prompt ends inside a character, that character stays unfinished and the output begins with a new one.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from dormouse.errors import ConfigError
from dormouse.model import utf8 as machine
from dormouse.model.decode import ByteStep, fits
from dormouse.model.records import LoopState
from dormouse.model.sampling import SamplingSettings, draw_uniform, pick

EMPTY_PROMPT_CONTEXT = b"\n"
PREFILL_CHUNK = 512
_SEED_LIMIT = 2**63


def generate(
    model: nn.Module,
    prompt: bytes,
    num_bytes: int,
    *,
    settings: SamplingSettings | None = None,
    seed: int = 0,
    utf8: bool = False,
    prefill_chunk: int = PREFILL_CHUNK,
) -> Iterator[bytes]:
    """Continue `prompt` by exactly `num_bytes` bytes, handed out as they are drawn (whole characters with
    `utf8`).

    The model keeps its mode and device; gradients are off. Same model, arguments and seed, same bytes. Raises
    `ConfigError` at the call for a count or seed that is out of range, `DormouseError` while running if the
    model returns logits that are not numbers.
    """
    check_request(num_bytes, seed, prefill_chunk=prefill_chunk)
    chooser = _Chooser(settings or SamplingSettings(), seed=seed, utf8=utf8, num_rows=1)
    columns = _columns(model, [prompt], num_bytes, chooser, prefill_chunk)
    return _whole_characters(columns, chooser)


def generate_batch(
    model: nn.Module,
    prompts: Sequence[bytes],
    num_bytes: int,
    *,
    settings: SamplingSettings | None = None,
    seed: int = 0,
    utf8: bool = False,
    prefill_chunk: int = PREFILL_CHUNK,
) -> list[bytes]:
    """Continue every prompt by `num_bytes` bytes in one batch; row i is what `generate` gives for seed + i.

    Equal up to the rounding of the logits, which may depend on the batch size and on the padding. Errors as
    in `generate`.
    """
    check_request(num_bytes, seed, prefill_chunk=prefill_chunk, num_rows=len(prompts))
    if not prompts:
        return []
    chooser = _Chooser(settings or SamplingSettings(), seed=seed, utf8=utf8, num_rows=len(prompts))
    columns = list(_columns(model, prompts, num_bytes, chooser, prefill_chunk))
    return [bytes(int(column[row]) for column in columns) for row in range(len(prompts))]


@torch.inference_mode()
def prefill(
    model: nn.Module, ids: Tensor, *, bounds: Tensor | None = None, chunk: int = PREFILL_CHUNK
) -> tuple[Tensor, LoopState]:
    """Read a prompt from a fresh state, `chunk` positions at a time.

    ids int64 [B, T] with T >= 1; bounds bool [B, T] or None, True at the first byte of a document. Returns
    the logits after the last position, fp32 [B, 256], and the state to go on from.
    """
    out = None
    for start in range(0, ids.shape[1], chunk):
        piece = slice(start, start + chunk)
        marks = None if bounds is None else bounds[:, piece]
        out = model(ids[:, piece], bounds=marks, state=None if out is None else out.state)
    assert out is not None, "a prompt has at least one byte"
    return out.logits[:, -1], out.state


@torch.inference_mode()
def step(model: nn.Module, ids: Tensor, state: LoopState) -> tuple[Tensor, LoopState]:
    """Read one more byte per row: ids int64 [B]. Returns logits fp32 [B, 256] and the next state."""
    out = model(ids[:, None], bounds=None, state=state)
    return out.logits[:, -1], out.state


def stepper(model: nn.Module) -> Callable[[Tensor, LoopState], tuple[Tensor, LoopState]]:
    """The fastest way to read one byte per row: `ByteStep` where it knows the model's parts, else `step`."""
    return ByteStep(model) if fits(model) else partial(step, model)


def check_request(num_bytes: int, seed: int, *, prefill_chunk: int = PREFILL_CHUNK, num_rows: int = 1) -> None:
    """Refuse counts and seeds that have no meaning, before the model does any work; raises `ConfigError`."""
    if num_bytes < 0:
        raise ConfigError(
            f"bytes = {num_bytes}: a negative number of bytes would be written; "
            "give 0 (writes nothing) or the number you want."
        )
    if seed < 0 or seed + num_rows > _SEED_LIMIT:
        raise ConfigError(
            f"seed = {seed}: it would not fit the random generator; "
            f"give a whole number from 0 to 2**63 - {num_rows + 1}."
        )
    if prefill_chunk < 1:
        raise ConfigError(
            f"prefill_chunk = {prefill_chunk}: the prompt would never be read; "
            f"give the positions to read at once, {PREFILL_CHUNK} by default."
        )


class _Chooser:
    """Picks one byte per row; holds the random generators and the UTF-8 states of the rows."""

    def __init__(self, settings: SamplingSettings, *, seed: int, utf8: bool, num_rows: int) -> None:
        self.settings = settings
        self.generators = [torch.Generator().manual_seed(seed + row) for row in range(num_rows)]
        self.states = [machine.START] * num_rows if utf8 else None

    def choose(self, logits: Tensor, *, room: int) -> Tensor:
        """One byte per row, int64 [B] on the CPU; logits [B, 256], `room` = bytes left with this one."""
        uniform = None
        if not self.settings.greedy:
            uniform = torch.stack([draw_uniform(generator) for generator in self.generators])
        if self.states is None:
            return pick(logits, self.settings, uniform)
        allowed = torch.stack([machine.allowed(state, room=room) for state in self.states])
        ids = pick(logits, self.settings, uniform, allowed=allowed)
        pairs = zip(self.states, ids.tolist(), strict=True)
        self.states = [machine.advance(state, byte) for state, byte in pairs]
        return ids

    def between_characters(self) -> bool:
        """True where the text of the first row may be cut; always without the UTF-8 restriction."""
        return self.states is None or machine.missing(self.states[0]) == 0


def _columns(
    model: nn.Module, prompts: Sequence[bytes], num_bytes: int, chooser: _Chooser, chunk: int
) -> Iterator[Tensor]:
    """The bytes of all rows, one position at a time: int64 [B] on the CPU."""
    if num_bytes == 0:
        return
    device = next(model.parameters()).device
    ids, bounds = _left_padded([prompt or EMPTY_PROMPT_CONTEXT for prompt in prompts])
    bounds = None if bounds is None else bounds.to(device)
    logits, state = prefill(model, ids.to(device), bounds=bounds, chunk=chunk)
    advance = stepper(model)
    for room in range(num_bytes, 0, -1):
        column = chooser.choose(logits, room=room)
        yield column
        if room > 1:
            logits, state = advance(column.to(device), state)


def _left_padded(prompts: Sequence[bytes]) -> tuple[Tensor, Tensor | None]:
    """ids int64 [B, T] that end together; bounds bool [B, T] where each begins, None for equal lengths."""
    longest = max(len(prompt) for prompt in prompts)
    joined = bytearray(b"".join(prompt.rjust(longest, b"\n") for prompt in prompts))
    ids = torch.frombuffer(joined, dtype=torch.uint8).view(len(prompts), longest).long()
    starts = torch.tensor([longest - len(prompt) for prompt in prompts])
    if not starts.any():
        return ids, None
    return ids, torch.arange(longest) == starts[:, None]


def _whole_characters(columns: Iterator[Tensor], chooser: _Chooser) -> Iterator[bytes]:
    """The first row as byte strings, cut only between characters."""
    waiting = b""
    for column in columns:
        waiting += bytes([int(column[0])])
        if chooser.between_characters():
            yield waiting
            waiting = b""
