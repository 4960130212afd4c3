"""Training batches as a pure function of the step number.

The file is cut into non-overlapping windows of `seq_len` inputs; the byte after each is its last target, so n
bytes hold (n - 1) // seq_len windows. Samples are numbered 0, 1, 2, ... over the whole run: step s, rank r
and row i read sample s * batch * world + r * batch + i, so the ranks of a step partition one global batch and
the union does not depend on how many ranks share it. Sample g belongs to epoch g // n_windows and reads the
window at position g % n_windows of that epoch's order, a keyed permutation (`permutation.py`). Nothing is
consumed and nothing is remembered: resuming at step s means asking for step s. The up to seq_len - 1 bytes
after the last whole window are not trained on.
"""

import numpy as np

from dormouse.data.batch import Batch, to_tensor
from dormouse.data.bounds import document_starts
from dormouse.data.permutation import permute
from dormouse.errors import DataError


class TrainStream:
    """Batches of a uint8 stream; `batch(step)` may be asked in any order and always answers the same."""

    def __init__(
        self,
        data: np.ndarray,
        *,
        seq_len: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        separator: bytes | None = None,
    ) -> None:
        if len(data) < seq_len + 1:
            raise DataError(
                f"training data of {len(data):,} bytes is shorter than one window: seq_len={seq_len} needs "
                f"{seq_len + 1:,} bytes; give more text or a smaller seq_len"
            )
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} is not in 0..{world - 1}")
        self._data = data
        self._seq_len = seq_len
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._world = world
        self._separator = separator

    @property
    def n_windows(self) -> int:
        """How many different windows the data hold; one epoch reads each once."""
        return (len(self._data) - 1) // self._seq_len

    def window_ids(self, step: int) -> np.ndarray:
        """int64 [batch_size]: the windows that this rank reads at `step` (>= 0)."""
        first = (step * self._world + self._rank) * self._batch_size
        samples = np.arange(first, first + self._batch_size, dtype=np.int64)
        epochs, positions = np.divmod(samples, self.n_windows)
        ids = np.empty_like(samples)
        for epoch in np.unique(epochs):
            rows = epochs == epoch
            ids[rows] = permute(positions[rows], self.n_windows, seed=self._seed, epoch=int(epoch))
        return ids

    def epoch(self, step: int) -> float:
        """Passes over the data completed before `step`, as a fraction."""
        return step * self._world * self._batch_size / self.n_windows

    def batch(self, step: int) -> Batch:
        """The batch of this rank at `step`: inputs and targets int64 [B, T], every target counted."""
        ids = self.window_ids(step)
        starts = ids * self._seq_len
        block = self._data[starts[:, None] + np.arange(self._seq_len + 1)].astype(np.int64)
        bounds = None
        if self._separator is not None:
            bounds = np.stack([self._starts(int(start), self._separator) for start in starts])
        return Batch(
            inputs=to_tensor(block[:, :-1]),
            targets=to_tensor(block[:, 1:]),
            mask=to_tensor(np.ones((len(ids), self._seq_len), dtype=bool)),
            bounds=None if bounds is None else to_tensor(bounds),
            window_ids=to_tensor(ids),
        )

    def _starts(self, start: int, separator: bytes) -> np.ndarray:
        return document_starts(self._data, start, start + self._seq_len, separator=separator)
