"""The recurrent peers, LSTM and GRU, and the order in which they read the text.

Embedding 256, two recurrent layers of 256, RMSNorm, linear head. The recurrent matrices start orthogonal, gate by
gate, and the LSTM's forget gates start open (bias 1). Training is truncated back-propagation: the text is cut into
as many streams as a batch has rows, every stream is read in order, a piece of 64 bytes a step, and the state at the
end of a piece is the state at the start of the next one. Back at the top of the streams the state starts afresh.
"""

import numpy as np
import torch
from benchmarks.peers_gpt import VOCAB, PeerOutput
from torch import Tensor, nn

from dormouse.data.batch import Batch, to_tensor

_GATES = {"lstm": 4, "gru": 3}


class Recurrent(nn.Module):
    """A recurrent byte model; the carried state is detached, so gradients end at the piece."""

    def __init__(self, kind: str, *, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(VOCAB, width)
        cell = nn.LSTM if kind == "lstm" else nn.GRU
        self.body = cell(width, width, layers, batch_first=True)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        for name, p in self.body.named_parameters():
            if name.startswith("weight_hh"):
                for gate in p.chunk(_GATES[self.kind]):
                    nn.init.orthogonal_(gate)
            elif name.startswith("bias"):
                nn.init.zeros_(p)
                if self.kind == "lstm" and name.startswith("bias_ih"):
                    p.chunk(4)[1].fill_(1.0)

    def forward(self, ids: Tensor, bounds: Tensor | None = None, state: object = None) -> PeerOutput:
        """Bytes int64 [B, T] to logits [B, T, 256] and the state after them; `bounds` is unused."""
        y, after = self.body(self.embedding(ids), state)
        carried = tuple(x.detach() for x in after) if isinstance(after, tuple) else after.detach()
        return PeerOutput(self.head(self.norm(y)), carried)


class OrderedStreams:
    """Pieces of parallel streams in reading order; a pure function of the step, like `TrainStream`."""

    def __init__(self, data: np.ndarray, *, streams: int, piece: int) -> None:
        self._data, self._streams, self._piece = data, streams, piece
        self._length = (len(data) - 1) // streams
        self.pieces = self._length // piece
        """Steps until the streams start again."""

    def batch(self, step: int) -> Batch:
        """The pieces of `step`: [streams, piece] inputs and the bytes after them."""
        first = np.arange(self._streams) * self._length + step % self.pieces * self._piece
        block = self._data[first[:, None] + np.arange(self._piece + 1)].astype(np.int64)
        mask = np.ones((self._streams, self._piece), dtype=bool)
        return Batch(to_tensor(block[:, :-1]), to_tensor(block[:, 1:]), to_tensor(mask), None, to_tensor(first))

    def continues(self, step: int) -> bool:
        """Whether the state before `step` is the one after the step before it."""
        return step % self.pieces != 0
