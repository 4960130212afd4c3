"""No logit reads a later byte: for every mechanism on and off, in both layouts, at every depth."""

import pytest
import torch
import torch.nn.functional as F

BLEND = ["moe_topk=0", "moe_lb_coef=0", "moe_gate_scale=one"]
ARMS = {
    "tiny": [],
    "blend": BLEND,
    "blend one head": [*BLEND, "n_heads=1", "head_dim=16"],
    "blend parallel": [*BLEND, "layout=parallel"],
    "blend one pass": [*BLEND, "max_iter=1"],
    "blend four passes": [*BLEND, "max_iter=4"],
    "blend no convolution": [*BLEND, "kda_conv_width=1"],
    "blend dense half, parallel": [*BLEND, "engram_dense_half=true", "engram_lam_max=0.5", "layout=parallel"],
    "blend without memory": [*BLEND, "use_engram=false"],
    "blend without attention": [*BLEND, "use_kda=false"],
    "blend plain attention": [*BLEND, "use_kda=false", "use_plain_attn=true"],
    "top-2": ["moe_topk=2"],
    "top-2 parallel, three passes": ["moe_topk=2", "layout=parallel", "max_iter=3"],
    "top-1 plain attention": ["use_kda=false", "use_plain_attn=true"],
    "dense experts": ["use_tsct=false"],
    "sigmoid, biased by pass": ["router_score=sigmoid", "selection_bias=loss_free", "balance_per_pass=true"],
    "columns by pass": ["router_per_pass=columns", "moe_topk=2"],
    "low-rank router": ["router_rank=2"],
    "shared expert": ["n_shared_experts=1", "moe_topk=2"],
}


@pytest.mark.parametrize("arm", ARMS)
def test_changing_a_byte_leaves_all_earlier_logits_alone(arm, make_model, make_bytes):
    model = make_model(*ARMS[arm])
    ids = make_bytes(1, 32)
    with torch.no_grad():
        before = model(ids).logits
        for t in range(1, 32):
            changed = ids.clone()
            changed[0, t] = (changed[0, t] + 1 + t) % 256
            after = model(changed).logits
            if "blend" in arm:
                assert torch.equal(after[:, :t], before[:, :t]), f"byte {t} reaches back"
            else:
                torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-5)
            assert (after[:, t] - before[:, t]).abs().max() > 1e-6, "the byte itself must matter"


@pytest.mark.parametrize("arm", ["tiny", "blend", "blend parallel", "top-2", "blend plain attention"])
def test_the_loss_before_t_has_no_gradient_in_the_embedding_at_t(arm, make_model, make_bytes):
    model = make_model(*ARMS[arm])
    ids = make_bytes(2, 32)
    ids[:, 20] = 7
    ids[ids == 7] = 8
    ids[:, 20] = 7  # byte 7 stands at position 20 only, so its embedding row is the embedding at 20
    logits = model(ids).logits
    loss = F.cross_entropy(logits[:, :20].flatten(0, 1), ids[:, 1:21].flatten())
    (grad,) = torch.autograd.grad(loss, model.embedding.weight)
    assert torch.equal(grad[7], torch.zeros_like(grad[7]))
    assert grad.abs().sum() > 0


def test_a_state_handed_from_pass_to_pass_would_be_caught(make_model, make_bytes):
    """The original's defect, made on purpose: pass i starts from the state after pass i - 1 of the same text."""
    model = make_model(*BLEND)
    ids = make_bytes(1, 32)
    changed = ids.clone()
    changed[0, 31] ^= 1

    def leaky(x):
        state = model(x).state
        return model(x, state=type(state)(state.passes, state.history * 0, state.age * 0, 0)).logits

    with torch.no_grad():
        assert not torch.equal(leaky(ids)[:, :31], leaky(changed)[:, :31])


@pytest.mark.parametrize("length", [17, 32, 33])
def test_a_row_alone_is_the_row_in_a_batch(length, make_model, make_bytes):
    """One head of one sequence is a single matrix to the mixer; two rows are two."""
    model, ids = make_model("n_heads=1", "head_dim=16"), make_bytes(2, length)
    with torch.no_grad():
        torch.testing.assert_close(model(ids[:1]).logits, model(ids).logits[:1], rtol=0, atol=1e-5)
