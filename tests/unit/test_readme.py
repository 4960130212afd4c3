"""What the documents say can be done, can be done, and what they say was measured stands in a file."""

import ast
import csv
import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest
from typer.main import get_command

import dormouse
from dormouse.cli.main import COMMANDS, build_app
from dormouse.config.load import load_preset, load_run_config, preset_names, resolve
from dormouse.config.schema import unbuilt
from dormouse.config.sizes import count_parts, total_parameters
from dormouse.config.unbuilt import _MECHANISMS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDES = [README, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("experiments/**/*.md")), *sorted(ROOT.glob("docs/*.md"))]
PAGES = [*GUIDES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md", *sorted(ROOT.glob("docs/decisions/*.md"))]
MEASURED = [*sorted(ROOT.glob("experiments/*/notes.md")), *sorted(ROOT.glob("docs/decisions/*.md"))]


def fenced(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def inline(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def shell_lines(page):
    return [line.strip() for block in fenced(page, "sh") for line in block.splitlines() if line.strip()]


def spoken(program):
    """(page, words, whole) of every command line of `program`; inline ones may leave arguments out."""
    found = []
    for page in GUIDES:
        lines = [(line, True) for line in shell_lines(page)] + [(code, False) for code in inline(page)]
        for line, whole in lines:
            words = shlex.split(line, comments=True) if line.startswith(f"{program} ") else []
            if words[1:]:
                found.append(pytest.param(words[1:], whole, id=f"{page.name}: {' '.join(words)}"[:90]))
    return found


def command_of(words):
    """The click command of `words`, and its arguments."""
    names = [word for word in words if not word.startswith("-")]
    assert not names or names[0] in COMMANDS, f"no command {names[0]}"
    command, rest = get_command(build_app(names[0] if names else None)), list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    return command, rest


@pytest.mark.parametrize(("words", "whole"), spoken("dormouse"))
def test_every_command_line_in_the_documents_is_understood_by_the_program(words, whole):
    command, rest = command_of(words)
    if whole:
        command.make_context(words[0], list(rest))
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
    assert {word.split("=")[0] for word in rest if word.startswith("-")} <= known


@pytest.mark.parametrize(("words", "whole"), spoken("dormouse"))
def test_every_setting_and_preset_in_a_command_line_exists(words, whole):
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    named = [words[i + 1] for i, word in enumerate(words) if word == "--preset"]
    if words[0] == "config" and words[1:2] in (["show"], ["diff"]):
        named += [word for word in words[2:4] if not word.startswith("-")]
    assert set(named) <= set(preset_names())
    resolve("tiny", None, settings)


@pytest.mark.parametrize(("words", "whole"), spoken("make"))
def test_every_make_target_in_the_documents_exists(words, whole):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(words) <= targets


@pytest.mark.parametrize("block", [block for page in GUIDES for block in fenced(page, "python")])
def test_python_in_the_documents_runs_and_names_what_exists(block):
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dormouse":
            assert node.attr in dormouse.__all__
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in [node.module] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names]:
                import_module(name)
    if "load_run" not in block:
        exec(compile(tree, "document", "exec"), {})


def test_python_names_inside_sentences_exist():
    names = [code.split("(")[0] for page in GUIDES for code in inline(page) if re.match(r"dormouse(\.\w+)+\(", code)]
    assert names
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(import_module(module), last)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_source_files_named_in_the_documents_exist(page):
    bases = (ROOT, ROOT / "src" / "dormouse", page.parent)
    paths = [code for code in inline(page) if re.fullmatch(r"[\w\-]+(/[\w\-]+)*/[\w\-]+\.(py|toml|json)", code)]
    named = [path for path in paths if "NAME" not in path]
    assert [path for path in named if not any((base / path).exists() for base in bases)] == []


def table_rows():
    table = README.read_text(encoding="utf-8").partition("<!-- results: begin -->")[2].partition("<!-- results: end")[0]
    return [line for line in table.splitlines() if "](" in line]


def leaves(value):
    """Numbers and texts of a JSON value, keys included."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in (key, *leaves(item))]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def pointed(value, pointer):
    for step in pointer.split("/")[1:]:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def decimals(number):
    return len(number.partition(".")[2])


@pytest.mark.parametrize("row", table_rows())
def test_a_figure_in_the_results_table_is_the_one_its_link_points_to(row):
    _, figure, _, link = (cell.strip() for cell in row.strip("|").split("|"))
    path, _, pointer = re.search(r"\]\((.+)\)", link)[1].partition("#")
    content = json.loads((ROOT / path).read_text(encoding="utf-8"))
    shown = re.search(r"[\d.]+", figure)[0]
    assert f"{pointed(content, unquote(pointer)):.{decimals(shown)}f}" == shown


@pytest.mark.parametrize("row", table_rows())
def test_every_other_number_of_a_row_stands_in_its_file_too(row):
    path = re.search(r"\]\(([^#)]+)", row)[1]
    found = leaves(json.loads((ROOT / path).read_text(encoding="utf-8")))
    commits = [leaf for leaf in found if isinstance(leaf, str) and re.fullmatch("[0-9a-f]{40}", leaf)]
    text = row.partition("[")[0]
    for commit in commits:
        text = text.replace(commit[:9], "")
    known = {word for leaf in [*found, path] if isinstance(leaf, str) for word in re.findall(r"\d+(?:\.\d+)?", leaf)}
    numbers = [leaf for leaf in found if isinstance(leaf, (int, float)) and not isinstance(leaf, bool)]
    for shown in re.findall(r"\d[\d,]*(?:\.\d+)?", text):
        plain = shown.replace(",", "")
        assert plain in known or any(f"{number:.{decimals(plain)}f}" == plain for number in numbers), shown


def test_the_results_table_is_what_the_tool_writes():
    tool = ROOT / "tools" / "readme_table.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_table_of_formats_is_what_the_tool_writes():
    tool = ROOT / "tools" / "format_table.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_scores_in_notes_and_decisions_are_in_an_experiment(page):
    known = set()
    for file in ROOT.glob("experiments/*/runs.csv"):
        with file.open(encoding="utf-8", newline="") as lines:
            known |= {row["bpb"] for row in csv.DictReader(lines)}
    text = re.sub(r"(?s)<!-- against .*?begin -->.*?end -->", "", page.read_text(encoding="utf-8"))  # tables: by a tool
    scores = re.findall(r"\b[1-7]\.\d{3,4}\b", text)
    assert [score for score in scores if score not in known] == []


@pytest.mark.parametrize("key", sorted(_MECHANISMS))
def test_the_readme_names_every_mechanism_that_is_not_built(key):
    assert f"`{key}`" in README.read_text(encoding="utf-8")


def test_the_readme_names_exactly_the_presets_that_cannot_be_trained():
    sentence = re.search(r"So presets (.*?) can be shown", README.read_text(encoding="utf-8"), re.DOTALL)[1]
    refused = {name for name in preset_names() if unbuilt(load_run_config(name).model)}
    assert set(re.findall(r"`([\w-]+)`", sentence)) == refused


def test_the_parameter_table_of_the_architecture_page_is_that_of_small():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d,]+) \| (yes|no) \|$", text, re.MULTILINE)
    small = load_preset("small")
    expected = [(p.name, p.shape, f"{p.parameters:,}", "yes" if p.built else "no") for p in count_parts(small)]
    assert rows == expected
    assert f"**{total_parameters(small):,}**" in text
    assert f"**{total_parameters(small, built_only=False):,}**" in text
