"""Which mechanisms a configuration asks for that this version does not build.

The schema reads every key of the original system; a mechanism that is not built is named here with a
sentence, and `Dormouse(config)` and `dormouse train` refuse it. Nothing is silently left out of a network.
"""

from typing import TYPE_CHECKING

from dormouse.config.problems import shown

if TYPE_CHECKING:
    from dormouse.config.model_schema import ModelConfig

# key: (value that means off, what the mechanism is, what would run without it)
_MECHANISMS: dict[str, tuple[object, str, str]] = {
    "bf16": (False, "bf16 activations", "fp32 activations"),
    "use_gr": (False, "gated residual", "the learned residual scalar"),
    "use_attnres": (False, "attention residuals", "the learned residual scalar"),
    "use_mhc": (False, "manifold hyper-connections", "the learned residual scalar"),
    "use_situ": (False, "SiTU-GLU experts", "experts without a gate"),
    "use_msa": (False, "sparse attention", "the attention slot alone"),
    "msa_distill_weight": (0, "sparse attention's distillation loss", "the byte loss alone"),
    "use_mor": (False, "mixture of recursions", "all max_iter passes for every byte"),
    "jepa_weight": (0, "latent prediction (JEPA)", "the byte loss alone"),
    "dspark_weight": (0, "the draft head", "the byte loss alone"),
    "use_byteflow": (False, "byteflow", "the loop over bytes"),
}


def unbuilt(config: "ModelConfig") -> list[str]:
    """One sentence per mechanism that `config` asks for and this version does not build."""
    return [
        f"model.{key} = {shown(getattr(config, key))}: {what} is not built in this version; {instead} would have "
        f"run. Set {key} = {shown(off)}."
        for key, (off, what, instead) in _MECHANISMS.items()
        if getattr(config, key) != off
    ]
