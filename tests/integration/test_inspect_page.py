"""The page of `dormouse inspect` in a real browser: what a reader sees, with and without scripts, on any screen."""

import re

import numpy as np
import pytest

from dormouse.report.inspection import render
from dormouse.report.palette import DARK, LIGHT
from traces import made_inspection

TEXT = 'A "cat" & a <b>rat</b>;\n\tnaïve — 日本, 🙂 \x01 end\n'.encode() * 6
SHOWN = TEXT.decode().replace("\x01", "\\x01")
SCHEMES = [pytest.param(False, id="light"), pytest.param(True, id="dark")]
COLORS = "[...document.querySelectorAll('#text b')].map(b => getComputedStyle(b).backgroundColor)"
LABELS = "[...document.querySelectorAll('#text b')].map(b => getComputedStyle(b, '::before').content)"


def rgb(color):
    return "rgb({}, {}, {})".format(*(int(color[i : i + 2], 16) for i in (1, 3, 5)))


def number_of(label):
    """The number of a label such as `"3" / ""`, or None where there is none."""
    found = re.match(r'"(\w+)"', label)
    return found and found[1]


@pytest.fixture
def page(browser):
    tab = browser.new_page()
    yield tab
    assert tab.complaints == []


@pytest.fixture
def routed(tmp_path):
    """(trace, file) of a page with three passes, two of eight experts a byte."""
    inspection = made_inspection(TEXT, passes=3, top_k=2, n_experts=8, cut="only a part is shown")
    (tmp_path / "page.html").write_text(render(inspection), encoding="utf-8")
    return inspection.trace, tmp_path / "page.html"


def check_view(page, colors, labels, values, palette):
    """Every byte has the color of its value, and a number stands where a stretch of one value begins."""
    assert colors == [rgb(palette[value]) for value in values]
    starts = [t == 0 or values[t] != values[t - 1] for t in range(len(values))]
    assert [number_of(label) for label in labels] == [
        str(value) if start else None for value, start in zip(values, starts, strict=True)
    ]


def test_the_text_is_the_text_and_every_byte_has_a_place_on_the_screen(page, routed):
    trace, file = routed
    page.show(file)
    assert page.run("document.getElementById('text').textContent") == SHOWN
    sizes = page.run(
        "[...document.querySelectorAll('#text b')].map(b => b.getClientRects()[0]).map(r => [r.width, r.height])"
    )
    assert len(sizes) == len(trace.data)
    assert min(width for width, _ in sizes) > 4
    assert min(height for _, height in sizes) > 10


def test_a_newline_breaks_the_line_and_bytes_of_one_character_stand_side_by_side(page, routed):
    _, file = routed
    page.show(file)
    places = page.run("[...document.querySelectorAll('#text b')].map(b => b.getClientRects()[0]).map(r => [r.x, r.y])")
    first_newline = TEXT.index(b"\n")
    assert places[first_newline + 1][1] > places[first_newline][1] + 15
    assert places[first_newline + 1][0] == places[0][0]
    start = TEXT.index("🙂".encode())
    four = places[start : start + 4]
    assert [x for x, _ in four] == sorted({x for x, _ in four})
    assert len({y for _, y in four}) == 1


@pytest.mark.parametrize("dark", SCHEMES)
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_the_first_view_is_pass_1_by_expert(page, routed, dark, scripts):
    trace, file = routed
    page.show(file, dark=dark, scripts=scripts)
    values = trace.ids[0, :, 0].tolist()
    check_view(page, page.run(COLORS), page.run(LABELS), values, (DARK if dark else LIGHT).experts)
    assert page.run("getComputedStyle(document.documentElement).backgroundColor") == rgb((DARK if dark else LIGHT).page)


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_every_pass_and_choice_can_be_picked(page, routed, scripts):
    trace, file = routed
    page.show(file, scripts=scripts)
    for number in (3, 2, 1):
        page.click(f"#pass-{number}")
        for slot in (2, 1):
            page.click(f"#slot-{slot}")
            values = trace.ids[number - 1, :, slot - 1].tolist()
            check_view(page, page.run(COLORS), page.run(LABELS), values, LIGHT.experts)
        keys = "[...document.querySelectorAll('.key')].map(key => key.checkVisibility())"
        assert page.run(keys) == [number == 1, number == 2, number == 3]


def test_color_by_surprisal_and_by_confidence(page, routed):
    trace, file = routed
    page.show(file, scripts=False)
    page.click("#by-surprisal")
    bits = np.minimum(np.rint(trace.bits[1:]), 9).astype(int).tolist()
    assert page.run(COLORS)[1:] == [rgb(LIGHT.surprisal[value]) for value in bits]
    numbers = [number_of(label) for label in page.run(LABELS)[1:]]
    assert numbers == [str(value) if value >= 2 else None for value in bits]
    assert not page.run("document.getElementById('pass-1').checkVisibility()")
    page.click("#by-confidence")
    page.click("#pass-2")
    tenths = np.minimum((trace.confidence[1] * 10).astype(int), 9).tolist()
    check_view(page, page.run(COLORS), page.run(LABELS), tenths, LIGHT.confidence)


def test_numbers_and_stripes_can_be_switched_off(page, routed):
    trace, file = routed
    page.show(file, scripts=False)
    shadow = "getComputedStyle(document.querySelector('#text b')).boxShadow"
    expected = [rgb(LIGHT.experts[expert]) for expert in trace.ids[:, 0, 0]]
    assert re.findall(r"rgb\([^)]*\)", page.run(shadow))[1:] == expected
    page.click("#slot-2")
    expected = [rgb(LIGHT.experts[expert]) for expert in trace.ids[:, 0, 1]]
    assert re.findall(r"rgb\([^)]*\)", page.run(shadow))[1:] == expected
    page.click("#stripes")
    assert page.run(shadow) == "none"
    page.click("#numbers")
    assert {number_of(label) for label in page.run(LABELS)} == {None}


def test_experts_beyond_sixteen_repeat_colors_with_another_pattern(page, tmp_path):
    inspection = made_inspection(TEXT, passes=1, n_experts=64)
    (tmp_path / "page.html").write_text(render(inspection), encoding="utf-8")
    page.show(tmp_path / "page.html")
    looks = page.run(
        "[...document.querySelectorAll('#text b')].map(b => getComputedStyle(b))"
        ".map(style => style.backgroundColor + style.backgroundImage)"
    )
    ids = inspection.trace.ids[0, :, 0].tolist()
    assert len(set(zip(ids, looks, strict=True))) == len(set(ids)) == len(set(looks))


def test_the_pointer_says_everything_about_a_byte(page, routed):
    trace, file = routed
    page.show(file)
    start = TEXT.index("日".encode())
    page.run(f"document.querySelectorAll('#text b')[{start + 1}].id = 'wanted'")
    page.point("#wanted")
    assert page.run("document.getElementById('panel-byte').textContent") == (
        f"Byte {start + 1}: 日 (its byte 2 of 3), 0x97 (151). Surprisal: {trace.bits[start + 1]:.2f} bits."
    )
    lines = page.run("[...document.querySelectorAll('#panel li')].map(line => line.textContent)")
    for number, line in enumerate(lines):
        (one, other), gates = trace.ids[number, start + 1], trace.gates[number, start + 1]
        assert line.startswith(
            f"Pass {number + 1}: expert {one}, gate {gates[0]:.3f}; expert {other}, gate {gates[1]:.3f}"
        )
        assert f"confidence {trace.confidence[number, start + 1]:.3f}" in line
    assert len(lines) == 3


def test_the_keyboard_reaches_every_byte(page, routed):
    _, file = routed
    page.show(file)
    said = "document.getElementById('panel-byte').textContent"
    page.run("document.getElementById('text').focus()")
    assert page.run(said).startswith("Byte 0: A, 0x41 (65). Surprisal: not scored")
    for key, byte in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", len(TEXT) - 1), ("Home", 0)):
        page.press(key)
        assert page.run(said).startswith(f"Byte {byte}: ")
    page.press("ArrowDown")
    assert page.run(said).startswith(f"Byte {TEXT.index(10) + 1}: tab")
    page.press("ArrowUp")
    assert page.run(said).startswith("Byte 0: ")
    page.press("Tab")
    assert page.run("document.activeElement.id") != "text"


def test_without_scripts_only_the_panel_is_missing(page, routed):
    trace, file = routed
    page.show(file, scripts=False)
    assert not page.run("document.getElementById('panel').checkVisibility()")
    assert page.run("document.querySelectorAll('#text b').length") == len(trace.data)
    assert page.run("document.querySelector('.spark path').getBoundingClientRect().height") > 10


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_screen_scrolls_sideways(page, routed, width):
    _, file = routed
    page.show(file, width=width)
    page.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert page.run("document.documentElement.scrollWidth") <= page.run("innerWidth") == width


def test_a_text_without_a_space_wraps(page, tmp_path):
    (tmp_path / "page.html").write_text(render(made_inspection(b"x" * 3000)), encoding="utf-8")
    page.show(tmp_path / "page.html", width=390)
    assert page.run("document.documentElement.scrollWidth") == 390


def test_names_and_roles_are_those_that_a_screen_reader_gets(page, routed):
    _, file = routed
    page.show(file)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    found = [(node.get("role", {}).get("value"), node.get("name", {}).get("value")) for node in nodes]
    roles = [role for role, _ in found]
    for role in ("banner", "main", "contentinfo"):
        assert roles.count(role) == 1
    groups = {name for role, name in found if role in ("group", "radiogroup")}
    assert {"Color by", "Pass", "Choice", "Show", "The text, colored by its routing"} <= groups
    assert [name for role, name in found if role == "radio"] == [
        *("expert", "surprisal", "router confidence", "1", "2", "3", "1", "2")
    ]
    assert any(role in ("image", "img") and name.startswith("Surprisal along the text: mean") for role, name in found)
    assert sum(role == "columnheader" for role in roles) > 20
    assert all(name for role, name in found if role in ("region", "radio", "checkbox", "status", "heading"))


def test_the_controls_are_reached_by_the_keyboard_without_scripts(page, routed):
    trace, file = routed
    page.show(file, scripts=False)
    page.run("document.getElementById('pass-1').focus()")
    page.press("ArrowRight")
    assert page.run(COLORS) == [rgb(LIGHT.experts[expert]) for expert in trace.ids[1, :, 0]]


def test_eight_kilobytes_load_and_answer(page, tmp_path):
    text = ("It is a truth universally acknowledged, that\n" * 200).encode()[:8192]
    (tmp_path / "page.html").write_text(render(made_inspection(text)), encoding="utf-8")
    page.show(tmp_path / "page.html")
    page.click("#pass-2")
    assert len(set(page.run(COLORS))) == 4
