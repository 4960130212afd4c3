"""The page as text: complete, bounded, the same every time, and nothing of the user's in it is taken for markup."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dormouse.report import styles
from dormouse.report.cells import code
from dormouse.report.inspection import byte_name, render
from traces import made_inspection

HOSTILE = b"</div><script>alert(1)</script><b class=A9>&amp;\"'\n\x00\xff\xc3\xa9 {{ 7*7 }} {% raw %}\n"


class Reader(HTMLParser):
    """Elements with their attributes, and tags that were left open."""

    VOID = ("meta", "link", "input", "br", "path", "line")

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.text, self.depth = [], [], "", 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if self.depth or dict(attributes).get("id") == "text":
            self.depth += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.depth -= bool(self.depth)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.depth:
            self.text += data


def bytes_of(reader):
    """Classes of the elements that stand for bytes of the text."""
    return [attributes["class"].split() for tag, attributes in reader.elements if tag == "b" and "class" in attributes]


@pytest.mark.parametrize("options", [{}, {"passes": 3, "top_k": 2, "n_experts": 8}, {"passes": 1, "n_experts": 40}])
def test_every_tag_is_closed_and_every_byte_has_an_element_with_its_experts(options):
    inspection = made_inspection(HOSTILE * 3, **options)
    reader = Reader(render(inspection))
    assert reader.open == []
    found, trace = bytes_of(reader), inspection.trace
    assert len(found) == len(trace.data)
    for t, names in enumerate(found):
        for view, expert in enumerate(trace.ids[:, t].ravel()):
            assert f"{code(view)}{expert}" in names


def test_text_and_names_are_shown_and_never_taken_for_markup():
    page = render(made_inspection(HOSTILE, name="<img src=x onerror=y>", cut="<i>cut</i>"))
    reader = Reader(page)
    assert reader.text.strip("\n") + "\n" == HOSTILE.replace(b"\x00\xff", b"\\x00\\xff").decode()
    assert [tag for tag, _ in reader.elements if tag in ("img", "script")] == ["script", "script"]
    assert "&lt;img src=x onerror=y&gt;" in page
    assert "&lt;i&gt;cut&lt;/i&gt;" in page


def test_nothing_is_fetched():
    page = render(made_inspection(b"http://example.org/ is text"))
    names = ("src", "href", "srcset", "action", "data", "poster", "xlink:href")
    links = [attributes[name] for _, attributes in Reader(page).elements for name in names if name in attributes]
    assert set(links) == {"data:,", "#text-heading"}
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_same_record_gives_the_same_page():
    assert render(made_inspection(HOSTILE)) == render(made_inspection(HOSTILE))


@pytest.mark.parametrize(
    ("options", "most"), [({}, 1.1e6), ({"n_experts": 8, "top_k": 2}, 1.4e6), ({"passes": 4, "n_experts": 16}, 2.0e6)]
)
def test_eight_kilobytes_of_text_make_a_page_below_two_megabytes(options, most):
    text = ("It is a truth universally acknowledged, “naïve” — that\n" * 200).encode()[:8192]
    assert len(render(made_inspection(text, **options)).encode()) < most


def test_headers_captions_and_landmarks_are_there():
    page = render(made_inspection(HOSTILE, passes=3, top_k=2))
    reader = Reader(page)
    tags = [tag for tag, _ in reader.elements]
    assert [tags.count(tag) for tag in ("h1", "header", "main", "footer", "title")] == [1, 1, 1, 1, 1]
    assert tags.count("caption") == tags.count("table") > 4
    assert all("scope" in attributes for tag, attributes in reader.elements if tag == "th")
    assert tags.count("fieldset") == tags.count("legend") == 4
    named = {attributes.get("aria-labelledby") for tag, attributes in reader.elements if tag == "section"}
    assert named <= {attributes.get("id") for tag, attributes in reader.elements if tag == "h2"}
    assert re.search(r'<html lang="en">', page)


def test_figures_of_agreement_are_on_the_page_to_their_last_shown_digit():
    inspection = made_inspection(b"a b c d e f g h" * 20, passes=3, top_k=2, n_experts=5)
    from dormouse.instruments.pass_agreement import agreements

    page = render(inspection)
    for pair in agreements(inspection.trace.ids, 5):
        for part in (pair.raw, pair.chance, pair.identical, pair.identical_chance, pair.disjoint, pair.disjoint_chance):
            assert f"<td>{100 * part:.1f} %</td>" in page
        assert f"<td>{pair.kappa:.3f}</td>" in page
    assert f"<dd>{inspection.trace.bpb:.4f}" in page


def test_a_large_transition_table_keeps_its_sum():
    page = render(made_inspection(b"some text " * 100, n_experts=60))
    table = page[page.index('<table class="cross">') :]
    table = table[: table.index("</table>")]
    counts = [int(number.replace(",", "")) for number in re.findall(r">([\d,]+)<small>", table)]
    assert len(counts) == 17 * 17
    assert sum(counts) == 1000
    assert "others" in table


def test_null_experts_are_named_wherever_experts_are():
    page = render(made_inspection(b"some text " * 100, n_experts=3, n_null=2))
    assert "Which of 3 experts and 2 null ones, which compute nothing, each byte went to" in " ".join(page.split())
    assert re.findall(r">(\d)</span>null, ", page) == ["3", "4"] * 2
    assert re.findall(r">(\d)</span> null</th>", page) == ["3", "4"] * 3


def test_a_pass_of_null_experts_alone_has_no_evenness():
    inspection = made_inspection(HOSTILE, n_experts=2, n_null=1)
    assert "<dd>-<small>" in render(replace(inspection, evenness=(None, 0.5)))


def test_a_single_pass_says_that_there_is_nothing_to_compare():
    assert "One pass ran: there is nothing to compare." in render(made_inspection(HOSTILE, passes=1))


@pytest.mark.parametrize("number", [2, 3, 500])
def test_the_shortest_texts_make_a_page(number):
    assert len(bytes_of(Reader(render(made_inspection(b"x" * number))))) == number


def test_names_of_views_are_all_different():
    names = [code(number) for number in range(2000)]
    assert (names[0], names[25], names[26], names[702]) == ("A", "Z", "AA", "AAA")
    assert len(set(names)) == 2000


def test_custom_properties_of_many_passes_have_names_of_their_own():
    page = render(made_inspection(HOSTILE, passes=40, top_k=2))
    declared = re.findall(r"(?m)^\.([A-Za-z_]+\d+)\{--(\w+):", page[: page.index("</style>")])
    assert len(declared) > 40 * (10 + 2 * 4)
    by_property = {}
    for name, variable in declared:
        by_property.setdefault(variable, set()).add(name.rstrip("0123456789"))
    assert all(len(families) == 1 for families in by_property.values())
    sheet = Path(styles.__file__).with_name("templates") / "inspect.css"
    fixed = {"x", "xp", "sl", "sp", *re.findall(r"--(\w+):", sheet.read_text(encoding="utf-8"))}
    assert set(by_property) & fixed == {"s"}  # the byte that is not scored has its color there


@pytest.mark.parametrize(
    ("byte", "name"), [(10, "newline"), (32, "space"), (9, "tab"), (65, "A"), (0, "\\x00"), (0xE9, "0xe9")]
)
def test_bytes_have_names(byte, name):
    assert byte_name(byte) == name


def test_pages_are_made_without_torch():
    program = "import sys; from dormouse.report import inspection; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
