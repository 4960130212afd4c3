"""What should have run, against what did: the counters' part of a run's audit (M4).

The configuration says which mechanisms are on; the counters say how often each went forward and backward. One that is
on and has a zero is named, and the run fails like a run whose tensors did not move. A retraction or a latch check is
missed only once it has been due: a run may be shorter than their cadence.
"""

from collections.abc import Iterator

from dormouse.config.schema import ModelConfig
from dormouse.config.sizes import router_columns
from dormouse.instruments.counters import Ran
from dormouse.model.factor_format import formatted_layers
from dormouse.train.run import Run


def idle(run: Run, ran: Ran) -> list[str]:
    """One phrase per mechanism that is on and did not run, forward or backward; empty before the first scored byte."""
    if run.state.progress.trained_bytes == 0:
        return []
    both = [*graph_mechanisms(run.config.model, run.config.train.moe_path)]
    lost = [f"{name} (no forward)" for name in both if not ran.forwards.get(name)]
    lost += [f"{name} (no backward)" for name in both if ran.forwards.get(name) and not ran.backwards.get(name)]
    return lost + [f"{name} (was due)" for name in _due(run) if not ran.forwards.get(name)]


def graph_mechanisms(model: ModelConfig, path: str = "dispatch") -> Iterator[str]:
    """Names of the mechanisms of `model` that have to go forward and backward in every training run."""
    if model.use_plain_attn or model.use_kda:
        yield "plain_attention" if model.use_plain_attn else "kda"
    if model.use_engram:
        yield "engram"
    spectral = model.use_tsct and "experts" in model.tsct_parts
    yield f"{'experts' if spectral else 'dense_experts'}.{path if model.moe_topk else 'blend'}"
    if model.moe_lb_coef > 0 and model.moe_topk > 0 and router_columns(model) > 1:
        yield "balance"
    if model.moe_z_coef > 0 and model.moe_topk > 0 and router_columns(model) > 1:
        yield "router_z"
    if model.n_shared_experts:
        yield "shared_experts"
    if model.deep_supervision > 0:
        yield "deep_supervision"
    if model.aux_fb_weight > 0:
        yield "future_byte"
    if model.quant != "fp32" and model.use_tsct and model.tsct_parts:
        yield "weight_format"
    if model.act_quant != "none":
        yield "activation_format"


def _due(run: Run) -> Iterator[str]:
    """Names of what works between steps and has been due at least once."""
    progress, train, settings = run.state.progress, run.config.train, run.settings
    moved = progress.step - progress.empty_steps - run.state.firewall.skipped
    if run.config.model.selection_bias != "none" and moved > 0:
        yield "selection_bias"
    if not formatted_layers(run.state.model):
        return
    waiting, rate = progress.steps_since_retraction, progress.rate_since_retraction
    late = rate >= train.retract_when if train.retract_when else waiting >= train.retract_every
    retracts = settings.retract_every > 0 or settings.retract_when > 0
    if retracts and (waiting < moved or late):
        yield "retraction"
    waits = retracts and waiting > 0  # the latch looks right after a retraction
    if progress.latch_step > 0 or (run.state.latch.is_due(progress.step, last=0) and not waits):
        yield "latch"
