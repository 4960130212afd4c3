"""Generation over a stub with an exact carried state, and over the real model.

The stub is a hash automaton: its state is an integer per row that depends on every byte read so far, its
logits are a fixed function of that state. Reading in chunks, byte by byte or whole therefore gives equal
logits, and what the generator must write can be computed without it.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from dormouse.config.load import load_preset
from dormouse.errors import ConfigError, DormouseError
from dormouse.model.decode import ByteStep
from dormouse.model.generate import EMPTY_PROMPT_CONTEXT, generate, generate_batch, prefill, step, stepper
from dormouse.model.lm import Dormouse
from dormouse.model.sampling import SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
FLAT = SamplingSettings(temperature=1.0)
PRIME = 2_147_483_647


@dataclass(frozen=True)
class StubOutput:
    logits: torch.Tensor
    state: torch.Tensor


class Automaton(nn.Module):
    """Follows the calling contract of the language model and counts the positions it reads."""

    def __init__(self, scale=3.0):
        super().__init__()
        table = torch.randn(1009, 256, generator=torch.Generator().manual_seed(0)) * scale
        self.table = nn.Parameter(table)
        self.calls = []

    def forward(self, ids, bounds=None, state=None):
        assert ids.dtype == torch.int64
        self.calls.append(tuple(ids.shape))
        hidden = torch.zeros(len(ids), dtype=torch.int64) if state is None else state
        rows = []
        for t in range(ids.shape[1]):
            if bounds is not None:
                hidden = torch.where(bounds[:, t], 0, hidden)
            hidden = (hidden * 31_337 + ids[:, t] + 1) % PRIME
            rows.append(hidden)
        return StubOutput(self.table[torch.stack(rows, 1) % 1009], hidden)


@pytest.fixture(autouse=True)
def _one_thread():
    """Products this small only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def dormouse():
    """A narrow preset tiny with four passes, and no part left at zero."""
    narrow = ["d_model=32", "n_heads=2", "head_dim=16", "d_ffn=48", "rank=8", "engram_rows=256"]
    ranks = ["kda_decay_rank=8", "kda_gate_rank=8", "max_iter=4"]
    torch.manual_seed(0)
    model = Dormouse(load_preset("tiny", narrow + ranks)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def greedy_by_hand(model, prompt, count):
    """What greedy generation has to write: the whole text is read again for every byte."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return bytes(text[len(prompt) :])


def written(model, prompt, count, **options):
    return b"".join(generate(model, prompt, count, **options))


@pytest.mark.parametrize(
    "prompt", [b"x", b"The ", b"\x00\x00\x00", b"\xff\xfe", bytes(range(256)) * 2 + b"a" * 100], ids=len
)
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_carried_state_writes_what_reading_everything_again_would(prompt, chunk):
    model = Automaton()
    assert written(model, prompt, 20, settings=GREEDY, prefill_chunk=chunk) == greedy_by_hand(model, prompt, 20)


def test_a_prompt_beyond_the_window_is_read_to_its_end_in_chunks():
    model = Automaton()
    prompt = b"a" * 512 + b"b" * 100
    written(model, prompt, 1, settings=GREEDY)
    assert model.calls == [(1, 512), (1, 100)]
    assert written(model, prompt, 8, settings=GREEDY) != written(model, b"c" + prompt[1:], 8, settings=GREEDY)


def test_each_byte_costs_one_position_and_the_last_is_not_read():
    model = Automaton()
    written(model, b"abc", 5)
    assert model.calls == [(1, 3)] + [(1, 1)] * 4


def test_a_byte_is_handed_out_before_the_model_reads_it():
    model = Automaton()
    stream = generate(model, b"abc", 5)
    next(stream)
    assert model.calls == [(1, 3)]


def test_an_empty_prompt_continues_a_newline_that_is_not_written():
    model = Automaton()
    assert EMPTY_PROMPT_CONTEXT == b"\n"
    assert written(model, b"", 12, settings=GREEDY) == greedy_by_hand(model, b"\n", 12)


def test_no_new_bytes_give_nothing_and_ask_nothing_of_the_model():
    model = Automaton()
    assert list(generate(model, b"abc", 0)) == []
    assert generate_batch(model, [b"a", b""], 0) == [b"", b""]
    assert generate_batch(model, [], 5) == []
    assert model.calls == []


def test_the_same_seed_writes_the_same_text_and_greedy_ignores_it():
    model = Automaton()
    assert written(model, b"a", 30, seed=1) == written(model, b"a", 30, seed=1)
    assert written(model, b"a", 30, seed=1) != written(model, b"a", 30, seed=2)
    assert written(model, b"a", 30, seed=1, settings=GREEDY) == written(model, b"a", 30, seed=2, settings=GREEDY)


def test_global_random_state_gradients_and_mode_are_left_alone():
    model = Automaton().train()
    before = torch.get_rng_state()
    stream = generate(model, b"abc", 5)
    next(stream)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    b"".join(stream)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 64])
def test_utf8_output_is_valid_text_of_the_asked_length_handed_out_in_whole_characters(count):
    model = Automaton(scale=0.1)
    for seed in range(20):
        pieces = list(generate(model, b"a", count, settings=FLAT, seed=seed, utf8=True))
        assert len(b"".join(pieces)) == count
        assert all(len(piece.decode()) == 1 for piece in pieces)
    if count == 64:
        assert any(len(piece) == 4 for piece in pieces)
        with pytest.raises(UnicodeDecodeError):
            written(model, b"a", count, settings=FLAT).decode()


def test_utf8_output_stands_alone_after_a_prompt_cut_inside_a_character():
    assert written(Automaton(), b"\xe2\x82", 9, settings=FLAT, utf8=True).decode()


@pytest.mark.parametrize("utf8", [False, True])
@pytest.mark.parametrize("settings", [GREEDY, FLAT], ids=["greedy", "drawn"])
def test_each_row_of_a_batch_is_what_a_single_run_with_its_seed_writes(utf8, settings):
    model = Automaton()
    prompts = [b"short", b"", b"a much longer prompt than the others", b"\x00", b"short"]
    rows = generate_batch(model, prompts, 25, settings=settings, seed=40, utf8=utf8, prefill_chunk=8)
    for row, (text, prompt) in enumerate(zip(rows, prompts, strict=True)):
        assert text == written(model, prompt, 25, settings=settings, seed=40 + row, utf8=utf8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_bytes": -1}, "bytes = -1"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**63}, "seed = 9223372036854775808"),
        ({"prefill_chunk": 0}, "prefill_chunk = 0"),
    ],
)
def test_counts_and_seeds_without_meaning_are_refused_at_the_call(options, named):
    model = Automaton()
    arguments = {"num_bytes": 3, **options}
    with pytest.raises(ConfigError, match=f"^{named}: .*give "):
        generate(model, b"a", **arguments)
    with pytest.raises(ConfigError, match=f"^{named}: .*give "):
        generate_batch(model, [b"a"], **arguments)
    assert model.calls == []


def test_a_model_that_returns_nan_is_refused_instead_of_sampled():
    model = Automaton()
    nn.init.constant_(model.table, torch.nan)
    with pytest.raises(DormouseError, match="logit of byte 0 is nan"):
        written(model, b"a", 3)


def test_prefill_and_steps_give_the_logits_of_the_whole_window():
    model = Automaton()
    ids = torch.randint(256, (2, 70), generator=torch.Generator().manual_seed(1))
    whole = model(ids)
    logits, state = prefill(model, ids[:, :33], chunk=10)
    assert torch.equal(logits, whole.logits[:, 32])
    for t in range(33, 70):
        logits, state = step(model, ids[:, t], state)
        assert torch.equal(logits, whole.logits[:, t])
    assert torch.equal(state, whole.state)


def assert_same_state(got, wanted):
    assert torch.equal(got.history, wanted.history)
    assert torch.equal(got.age, wanted.age)
    assert got.position == wanted.position
    for mine, theirs in zip(got.passes, wanted.passes, strict=True):
        torch.testing.assert_close(mine.memory, theirs.memory, rtol=0, atol=1e-4)
        torch.testing.assert_close(mine.conv_tail, theirs.conv_tail, rtol=0, atol=1e-4)


@torch.no_grad()
def test_seventy_bytes_at_once_in_two_chunks_and_one_by_one_agree_in_logits_and_state(dormouse):
    ids = torch.randint(256, (1, 70), generator=torch.Generator().manual_seed(1))
    whole = dormouse(ids)
    first = dormouse(ids[:, :33])
    second = dormouse(ids[:, 33:], state=first.state)
    chunks = torch.cat([first.logits, second.logits], 1)
    torch.testing.assert_close(chunks, whole.logits, rtol=0, atol=1e-4)
    assert_same_state(second.state, whole.state)
    for advance in (lambda byte, state: step(dormouse, byte, state), ByteStep(dormouse)):
        state = dormouse.initial_state(1)
        for t in range(70):
            logits, state = advance(ids[:, t], state)
            torch.testing.assert_close(logits, whole.logits[:, t], rtol=0, atol=1e-4)
        assert_same_state(state, whole.state)


@torch.no_grad()
def test_the_carried_state_has_one_memory_for_each_pass(dormouse):
    _, state = prefill(dormouse, torch.arange(70)[None])
    memories = [mixer.memory for mixer in state.passes]
    assert len(memories) == 4
    for i in range(4):
        for j in range(i):
            assert (memories[i] - memories[j]).abs().max() > 1e-2


def test_the_model_is_stepped_by_its_fast_form_and_a_stranger_by_its_forward(dormouse):
    assert isinstance(stepper(dormouse), ByteStep)
    assert not isinstance(stepper(Automaton()), ByteStep)


@pytest.mark.parametrize("prompt", [b"", b"x", b"\x00", b"It is a truth", bytes(range(256)) * 2 + b"a" * 100], ids=len)
def test_the_model_writes_what_reading_everything_again_would(dormouse, prompt):
    with torch.no_grad():
        wanted = greedy_by_hand(dormouse, prompt or EMPTY_PROMPT_CONTEXT, 12)
    assert written(dormouse, prompt, 12, settings=GREEDY, prefill_chunk=100) == wanted


def test_rows_of_a_batch_do_not_see_their_padding(dormouse):
    prompts = [b"a long prompt that pads the others", b"ab", b"", b"a"]
    rows = generate_batch(dormouse, prompts, 12, settings=GREEDY, prefill_chunk=9)
    assert rows == [written(dormouse, prompt, 12, settings=GREEDY) for prompt in prompts]


def test_the_length_of_the_carried_state_does_not_grow_with_the_text(dormouse):
    _, short = prefill(dormouse, torch.zeros(1, 5, dtype=torch.int64))
    _, long = prefill(dormouse, torch.zeros(1, 700, dtype=torch.int64))
    assert short.nbytes() == long.nbytes()
