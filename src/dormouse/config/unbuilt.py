"""Which mechanisms a configuration asks for that this version does not build.

The schema reads every key of the original system; a mechanism that is not built is named here with a
sentence, and `Dormouse(config)` and `dormouse train` refuse it. Nothing is silently left out of a network.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dormouse.config.model_schema import ModelConfig

_SWITCHES = {
    "bf16": "activations are stored in fp32 only",
    "use_gr": "gated residual: the residual rule is the learned scalar (ReZero)",
    "use_attnres": "attention residuals: the residual rule is the learned scalar (ReZero)",
    "use_mhc": "manifold hyper-connections: the residual rule is the learned scalar (ReZero)",
    "use_situ": "SiTU-GLU experts: an expert is down(SiLU(up(x)))",
    "use_msa": "sparse attention: the attention slot holds KDA or plain attention",
    "use_mor": "mixture of recursions: every byte runs all max_iter passes",
    "use_byteflow": "byteflow: the network is the loop over bytes",
}
_WEIGHTS = {
    "jepa_weight": "latent prediction (JEPA): no predictor and no teacher exist",
    "dspark_weight": "draft head: no draft or acceptance head exists",
    "aux_fb_weight": "future-byte head: only the next byte is predicted",
    "msa_distill_weight": "sparse attention's distillation loss",
}


def unbuilt(config: "ModelConfig") -> list[str]:
    """One sentence per mechanism that `config` asks for and this version does not build."""
    asked = [f"{key} = true is not built: {why}." for key, why in _SWITCHES.items() if getattr(config, key)]
    asked += [
        f"{key} = {getattr(config, key)} is not built: {why}."
        for key, why in _WEIGHTS.items()
        if getattr(config, key)
    ]
    if config.quant != "fp32":
        asked.append(f'quant = "{config.quant}" is not built: spectral factors are fp32 in the forward pass.')
    if config.act_quant != "none":
        asked.append(f'act_quant = "{config.act_quant}" is not built: activations are not quantised.')
    return asked
