"""Kimi Delta Attention: the gated delta rule with one decay per key channel.

For every head, with state ``S`` of shape ``[K, V]`` and ``a_t = exp(g_t)``::

    S~  = diag(a_t) S_{t-1}                    decay first
    d_t = beta_t (v_t - S~^T k_t)              error against the decayed state
    S_t = S~ + k_t d_t^T                       write
    o_t = S_t^T q_t / sqrt(K)                  read after the write

`recurrent` is this loop, word for word. `chunked` computes the same numbers with matrix products over chunks
of tokens (Kimi Linear, arXiv 2510.26692; the delta rule in WY form, arXiv 2406.06484).
"""

from dormouse.ops.kda.chunked import CHUNK, chunked
from dormouse.ops.kda.recurrent import recurrent

__all__ = ["CHUNK", "chunked", "recurrent"]
