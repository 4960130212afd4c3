"""The browser of the page tests notices what it is there to notice."""

import pytest

from headless import find_browser


@pytest.mark.parametrize(
    ("markup", "said"),
    [
        ("<script>throw new Error('thrown here')</script>", "thrown here"),
        ("<script>console.error('logged here')</script>", "logged here"),
        ("<script>syntax error here</script>", "SyntaxError"),
        ("<img src='http://127.0.0.1:9/picture.png'>", "request for http://127.0.0.1:9/picture.png"),
        ("<link rel=stylesheet href='other.css'>", "other.css"),
    ],
)
def test_errors_and_requests_of_a_page_are_complaints(browser, tmp_path, markup, said):
    page = browser.new_page()
    (tmp_path / "page.html").write_text(f"<!doctype html><link rel=icon href='data:,'>{markup}", encoding="utf-8")
    page.show(tmp_path / "page.html")
    assert said in " ".join(page.complaints)


def test_scripts_are_off_when_they_should_be(browser, tmp_path):
    page = browser.new_page()
    (tmp_path / "page.html").write_text(
        "<!doctype html><p id=p>off<script>p.textContent = 'on'</script>", encoding="utf-8"
    )
    for scripts, shown in ((True, "on"), (False, "off"), (True, "on")):
        page.show(tmp_path / "page.html", scripts=scripts)
        assert page.run("document.getElementById('p').textContent").startswith(shown)


def test_a_machine_without_a_browser_is_told_what_to_do(monkeypatch):
    monkeypatch.setenv("DORMOUSE_BROWSER", "no-such-browser")
    with pytest.raises(AssertionError, match=r"no browser \(no-such-browser\).*apt-get install chromium"):
        find_browser()
    monkeypatch.delenv("DORMOUSE_BROWSER")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AssertionError, match=r"no browser \(chromium, chromium-browser, google-chrome"):
        find_browser()
