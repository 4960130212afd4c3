"""Which optimiser trains what, and the bundle that steps them together.

Groups follow the role that each module gave its parameters: dense matrices and spectral factors go to Muon
(queries, keys and values head by head; factors without decay, since decay would shrink what the retraction
restores), n-gram tables to a row-wise Adagrad, everything else to AdamW. With ``optimizer = "adamw"`` matrices and
factors go to AdamW too.
"""

from dataclasses import dataclass

import torch
from torch import nn

from dormouse.config.schema import TrainConfig
from dormouse.model.roles import Role, named_roles
from dormouse.train.muon import Muon, MuonParameter
from dormouse.train.table_adagrad import TableAdagrad

_BETAS = (0.9, 0.95)


@dataclass
class OptimizerBundle:
    """All optimisers of a run behind one step."""

    muon: Muon
    adamw: torch.optim.AdamW
    table: TableAdagrad
    lr: float

    def step(self, lr_scale: float) -> None:
        """One update of every group, its rate multiplied by ``lr_scale``."""
        self.muon.step(lr_scale)
        for group in self.adamw.param_groups:
            group["lr"] = self.lr * lr_scale
        self.adamw.step()
        self.table.step(lr_scale)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters():
            p.grad = None

    def parameters(self) -> list[nn.Parameter]:
        """Every trained parameter."""
        dense = [p for group in self.adamw.param_groups for p in group["params"]]
        return [m.parameter for m in self.muon.parameters] + dense + list(self.table.parameters.values())

    def state_dict(self) -> dict:
        """State of all groups."""
        return {
            "muon": self.muon.state_dict(),
            "adamw": self.adamw.state_dict(),
            "table": self.table.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state of all groups."""
        self.muon.load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])
        self._lay_out_moments()
        self.table.load_state_dict(state["table"])

    def _lay_out_moments(self) -> None:
        """Give each moment its parameter's strides: the fused kernel walks both through memory side by side."""
        for p, state in self.adamw.state.items():
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.empty_like(p, requires_grad=False).copy_(state[key])


def build_optimizer(model: nn.Module, train: TrainConfig) -> OptimizerBundle:
    """Sort the parameters of ``model`` into optimisers.

    Args:
        model: a module whose parameters all carry a role.
        train: rates, decay and the choice between Muon and AdamW for matrices and factors.
    """
    muon: list[MuonParameter] = []
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    tables: dict[str, nn.Parameter] = {}
    use_muon = train.optimizer == "muon"
    heads = getattr(getattr(model, "config", None), "n_heads", 1)
    for name, p, role in named_roles(model):
        if role is Role.TABLE:
            tables[name] = p
        elif use_muon and role is Role.FACTOR:
            muon.append(MuonParameter(name, p, shape_scale=False))
        elif use_muon and role in (Role.MATRIX, Role.HEADS):
            blocks = heads if role is Role.HEADS else 1
            muon.append(MuonParameter(name, p, blocks=blocks, weight_decay=train.weight_decay))
        elif role in (Role.MATRIX, Role.HEADS, Role.CONTROL):
            decayed.append(p)
        else:
            plain.append(p)
    groups = [
        {"params": decayed, "weight_decay": train.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=train.lr, betas=_BETAS, fused=True)
    return OptimizerBundle(
        muon=Muon(muon, lr=train.muon_lr),
        adamw=adamw,
        table=TableAdagrad(tables, lr=train.table_lr),
        lr=train.lr,
    )
