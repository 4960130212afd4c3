"""Made-up traces, for tests of what is computed and drawn from them."""

import numpy as np

from dormouse.instruments.byte_trace import ByteTrace


def made_trace(data, *, passes=2, top_k=1, n_experts=4, n_null=0, seed=0):
    """A trace of random choices that is right in form: ids differ, gates fall, the first byte is not scored."""
    random, n, columns = np.random.default_rng(seed), len(data), n_experts + n_null
    probs = np.sort(random.dirichlet(np.ones(columns), size=(passes, n)), axis=-1)[..., ::-1]
    ids = random.permuted(np.broadcast_to(np.arange(columns), (passes, n, columns)), axis=-1)[..., :top_k]
    bits = random.exponential(2.0, n)
    bits[0] = np.nan
    return ByteTrace(
        data=np.frombuffer(data, dtype=np.uint8),
        bits=bits,
        ids=ids,
        gates=probs[..., :top_k].astype(np.float32),
        confidence=probs[..., 0].astype(np.float32),
        entropy=-(probs * np.log2(np.maximum(probs, 1e-30))).sum(-1).astype(np.float32),
        n_experts=n_experts,
        n_null=n_null,
    )


def made_inspection(data, **options):
    """A page's record around a made-up trace; `name` and `cut` are its own, the rest goes to `made_trace`."""
    from dormouse.report.inspection import Inspection

    name, cut = options.pop("name", "a text"), options.pop("cut", None)
    trace = made_trace(data, **options)
    return Inspection(
        trace=trace,
        run="a run",
        checkpoint="step_12",
        step=12,
        text=name,
        cut=cut,
        evenness=(0.9,) * trace.n_passes,
        settings={"layout": "sequential"},
    )
