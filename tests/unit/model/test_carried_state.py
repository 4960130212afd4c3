"""One pass over a text, chunks with carried state and single bytes are the same function; documents are isolated."""

import pytest
import torch

ARMS = {
    "tiny": [],
    "four passes": ["max_iter=4"],
    "parallel, dense half": ["layout=parallel", "engram_dense_half=true"],
    "no convolution": ["kda_conv_width=1"],
    "plain attention": ["use_kda=false", "use_plain_attn=true"],
}


def run_in_pieces(model, ids, cuts):
    logits, state = [], None
    for a, b in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        out = model(ids[:, a:b], state=state)
        logits.append(out.logits)
        state = out.state
    return torch.cat(logits, 1), state


def states_agree(a, b, tolerance):
    assert torch.equal(a.history, b.history)
    assert torch.equal(a.age, b.age)
    for x, y in zip(a.passes, b.passes, strict=True):
        for name, value in vars(x).items():
            if value is not None:
                torch.testing.assert_close(value, getattr(y, name), rtol=0, atol=tolerance)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200, 511])
def test_whole_pass_equals_chunks_and_final_states(length, make_model, make_bytes):
    model, ids = make_model(), make_bytes(2, length)
    with torch.no_grad():
        whole = model(ids)
        cuts = sorted({c for c in (1, 2, 33, 64, 130, 131, 257) if c < length})
        logits, state = run_in_pieces(model, ids, cuts)
    torch.testing.assert_close(logits, whole.logits, rtol=0, atol=1e-4)
    states_agree(state, whole.state, 1e-4)


@pytest.mark.parametrize("arm", ARMS)
def test_byte_by_byte_equals_the_whole_pass(arm, make_model, make_bytes):
    model, ids = make_model(*ARMS[arm]), make_bytes(1, 70)
    with torch.no_grad():
        whole = model(ids)
        logits, state = run_in_pieces(model, ids, list(range(1, 70)))
        chunks, _ = run_in_pieces(model, ids, [33])
    torch.testing.assert_close(logits, whole.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(chunks, whole.logits, rtol=0, atol=1e-4)
    states_agree(state, whole.state, 1e-4)
    assert len(state.passes) == model.config.max_iter
    assert len({id(p) for p in state.passes}) == model.config.max_iter


def test_passing_the_initial_state_equals_passing_none(make_model, make_bytes):
    model, ids = make_model(), make_bytes(3, 20)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model(ids, state=model.initial_state(3)).logits)


@pytest.mark.parametrize("arm", ARMS)
def test_a_packed_document_does_not_see_the_one_before(arm, make_model, make_bytes):
    blend = ["moe_topk=0", "moe_lb_coef=0"]  # with dispatch the segments shift, and with them the last bits
    model, ids = make_model(*ARMS[arm], *blend), make_bytes(1, 12)
    bounds = torch.zeros(1, 12, dtype=torch.bool)
    bounds[0, 0] = bounds[0, 5] = True
    with torch.no_grad():
        packed = model(ids, bounds=bounds).logits[:, 5:]
        alone = model(ids[:, 5:]).logits
        changed = ids.clone()
        changed[:, :5] = 255 - changed[:, :5]
        moved = model(changed, bounds=bounds).logits[:, 5:]
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)
    assert torch.equal(moved, packed)


def test_a_document_that_starts_in_a_later_piece_is_isolated_too(make_model, make_bytes):
    model, ids = make_model(), make_bytes(1, 40)
    bounds = torch.zeros(1, 40, dtype=torch.bool)
    bounds[0, 23] = True
    with torch.no_grad():
        first = model(ids[:, :20])
        second = model(ids[:, 20:], bounds=bounds[:, 20:], state=first.state)
        alone = model(ids[:, 23:])
    torch.testing.assert_close(second.logits[:, 3:], alone.logits, rtol=0, atol=1e-5)
    states_agree(second.state, type(alone.state)(alone.state.passes, second.state.history, alone.state.age, 0), 1e-5)


@pytest.mark.parametrize("start", [17, 18, 19])
def test_a_document_that_starts_just_before_a_cut_stays_isolated_behind_it(start, make_model, make_bytes):
    model, ids = make_model(), make_bytes(1, 40)
    bounds = torch.zeros(1, 20, dtype=torch.bool)
    bounds[0, start] = True
    with torch.no_grad():
        first = model(ids[:, :20], bounds=bounds)
        second = model(ids[:, 20:], state=first.state)
        alone = model(ids[:, start:])
    torch.testing.assert_close(second.logits, alone.logits[:, 20 - start :], rtol=0, atol=1e-5)


def test_kda_state_does_not_grow_with_the_text(make_model, make_bytes):
    model = make_model()
    with torch.no_grad():
        sizes = {model(make_bytes(1, n)).state.nbytes() for n in (1, 40, 300)}
    assert len(sizes) == 1
