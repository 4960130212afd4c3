"""The scored window: a number of bytes at the front of a held-out file, whatever the batch size.

The scored bytes are data[1 .. W]; byte 0 has no context and is only read. They are cut into sequences of
`seq_len` targets, each starting with fresh state and with the byte before it as its only context. The last
sequence may be shorter and the last batch smaller: the short row is padded and masked, no byte is dropped,
none is scored twice. Which bytes are scored, and after which context, depends on `seq_len` and W alone. When
the file is shorter than the window, all of it but byte 0 is scored and `scored_bytes` says how much that is.
"""

from collections.abc import Iterator

import numpy as np
import torch

from dormouse.data.batch import Batch, to_tensor
from dormouse.data.bounds import document_starts
from dormouse.errors import DataError


class EvalWindow:
    """Iterable over the batches of a scored window; every iteration yields the same batches."""

    def __init__(
        self,
        data: np.ndarray,
        *,
        batches: int | None = 10,
        batch_size: int = 8,
        seq_len: int = 512,
        window_bytes: int | None = None,
        separator: bytes | None = None,
    ) -> None:
        """`batches=None` scores the whole file; `window_bytes` sets W directly and leaves batch_size free."""
        if len(data) < 2:
            raise DataError(f"held-out data of {len(data)} bytes holds no scored byte; 2 bytes are the least")
        if min(batch_size, seq_len) < 1:
            raise ValueError(f"batch_size={batch_size} and seq_len={seq_len} must be at least 1")
        if window_bytes is None:
            window_bytes = len(data) - 1 if batches is None else batches * batch_size * seq_len
        self.window_bytes = window_bytes
        """W: how many bytes were asked for."""
        self.scored_bytes = min(window_bytes, len(data) - 1)
        """How many bytes are scored: W, or all the file has after its first byte."""
        self.seq_len = seq_len
        self.batch_size = batch_size
        self._data = data
        self._separator = separator

    @property
    def n_sequences(self) -> int:
        """Number of sequences, the last one possibly short."""
        return -(-self.scored_bytes // self.seq_len)

    def __len__(self) -> int:
        return -(-self.n_sequences // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, self.n_sequences, self.batch_size):
            yield self._batch(np.arange(first, min(first + self.batch_size, self.n_sequences), dtype=np.int64))

    def positions(self, batch: Batch) -> np.ndarray:
        """int64 [B, T]: offset in the file of every target of `batch`; meaningless where mask is False."""
        return batch.window_ids.numpy()[:, None] * self.seq_len + 1 + np.arange(batch.targets.shape[1])

    def _batch(self, ids: np.ndarray) -> Batch:
        width = min(self.seq_len, self.scored_bytes)
        places = ids[:, None] * self.seq_len + np.arange(width)
        mask = places < self.scored_bytes
        inputs = np.where(mask, self._data[np.minimum(places, self.scored_bytes)], 0)
        targets = np.where(mask, self._data[np.minimum(places + 1, self.scored_bytes)], 0)
        return Batch(
            inputs=to_tensor(inputs.astype(np.int64)),
            targets=to_tensor(targets.astype(np.int64)),
            mask=to_tensor(mask),
            bounds=self._bounds(ids, width),
            window_ids=to_tensor(ids),
        )

    def _bounds(self, ids: np.ndarray, width: int) -> torch.Tensor | None:
        if self._separator is None:
            return None
        rows = np.zeros((len(ids), width), dtype=bool)
        for row, start in enumerate(ids * self.seq_len):
            stop = min(int(start) + width, self.scored_bytes)
            rows[row, : stop - start] = document_starts(self._data, int(start), stop, separator=self._separator)
        return to_tensor(rows)
