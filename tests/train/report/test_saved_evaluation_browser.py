"""The page as a browser shows it: nothing said in the console, every picture there, narrow and wide and on paper."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import browser
import pytest
from browser import Browser
from made_up_runs import make_run, of_gpus
from PIL import Image

from train import __main__ as front
from train.evaluation.mistakes import Calibration, CalibrationBin
from train.report import saved_evaluation
from train.report.saved_evaluation import GalleryImage, SavedEvaluation, SavedGallery

pytestmark = pytest.mark.slow  # a browser is no tool of every machine

HOSTILE = "\"><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all."""
    with browser.started(tmp_path_factory.mktemp("browser")) as started_browser:
        yield started_browser


def made_hostile(folder: Path) -> Path:
    """A run whose name, classes and commit are programs."""
    make_run(folder)
    for name in ("confusion.json", "run.json"):
        recorded = json.loads((folder / name).read_text()) | {
            "classes": [HOSTILE] * 3,
            "git": HOSTILE,
            "versions": {HOSTILE: HOSTILE},
        }
        (folder / name).write_text(json.dumps(recorded))
    return folder


def evaluation_of_strangers() -> SavedEvaluation:
    """As many thumbnails as there can be, with long and hostile names."""
    out = io.BytesIO()
    Image.new("RGB", (24, 12), (200, 30, 30)).save(out, "JPEG")
    names = ("a.png", f"{'folder-of-a-long-name/' * 6}{'x' * 60}.png", HOSTILE)
    images = tuple(
        GalleryImage(
            name=names[n % 3], cells=(HOSTILE if n % 9 == 0 else "cat", "dog", "100%", "9"), jpeg=out.getvalue()
        )
        for n in range(30)
    )
    head = ("true", "predicted", "confidence", "loss")
    bins = tuple(CalibrationBin(images=n, confidence=(n + 0.5) / 15, accuracy=0.5) for n in range(15))
    return SavedEvaluation(
        step=20,
        weights="not averaged",
        standing=HOSTILE,
        measured=HOSTILE,
        samples=105,
        task="classification",
        values={"accuracy": 0.5},
        notes=(HOSTILE,),
        classes=("cat", "dog"),
        confusion=((5, 5), (5, 5)),
        calibration=Calibration(error=0.1, bins=bins),
        galleries=(
            SavedGallery(title="The most confident mistakes:", head=head, images=images[:24]),
            SavedGallery(title="The highest losses:", head=head, images=images),
        ),
    )


def settings(number: int) -> list[str]:
    """Of a run of a sweep."""
    keys = ("optim.lr", "optim.weight_decay", "optim.momentum", "optim.label_smoothing", "optim.warmup_epochs")
    return [f"{key}={number / 1000 + 0.0001}" for key in keys] + [f"{key}={number + 1}" for key in ("run.seed", WORK)]


WORK = "train.epochs"
SHEET = round((210 - 2 * 14) / 25.4 * 96)  # pixels of A4 between its margins


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A report of one run, one of three, one of a run whose every text is a program, and one with thumbnails."""
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("out")
    events = [*of_gpus(2), {"event": "train", "step": 2, "loss": 1.0}]
    first = [make_run(runs / "with-gpus", events=events, ending={"code": 71, "step": 2, "cause": HOSTILE})]
    three = [make_run(runs / f"r{ranks}", ranks=ranks, speed=1000 - 50 * ranks) for ranks in (1, 2, 4)]
    hostile = [made_hostile(runs / "\"><img src=x onerror=document.title='owned'>")]
    many = [make_run(runs / f"resnet-of-a-long-name-{at}", settings=settings(at)) for at in range(14)]
    looked = [make_run(runs / "looked-at")]
    kept = evaluation_of_strangers()
    saved_evaluation.write(looked[0] / "evaluation.json", kept)
    saved_evaluation.write(hostile[0] / "evaluation.json", kept)
    pages = {"one": first, "three": three, "hostile": hostile, "many": many, "looked": looked}
    for name, folders in pages.items():
        assert front.run_command(["report", *map(str, folders), "--output", str(out / name)], {}) == 0
    return {name: out / name / "report.html" for name in PAGES}


PAGES = ("one", "three", "hostile", "many", "looked")


@pytest.mark.parametrize("name", PAGES)
def test_the_console_stays_silent_and_nothing_is_asked_of_the_network(
    shown: Browser, pages: Mapping[str, Path], name: str
) -> None:
    shown.open(pages[name])
    assert (shown.said, shown.asked) == ([], [])


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_is_there(shown: Browser, pages: Mapping[str, Path], name: str) -> None:
    shown.open(pages[name])
    drawn = "[...document.images].filter(i => i.src.startsWith('data:image/png'))"
    widths = shown.value(f"Promise.all({drawn}.map(i => i.decode().then(() => i.naturalWidth)))")
    assert len(widths) == len(list(pages[name].parent.glob("*.png"))) > 0
    assert all(width > 500 for width in widths)


@pytest.mark.parametrize("width", [360, 1200])
def test_thumbnails_are_shown_undistorted_with_their_captions_below(
    shown: Browser, pages: Mapping[str, Path], width: int
) -> None:
    shown.open(pages["looked"], width=width)
    sizes = shown.value(
        "Promise.all([...document.querySelectorAll('.gallery img')].map(i => i.decode().then(() => "
        "[i.naturalWidth, i.naturalHeight, getComputedStyle(i).objectFit, i.width, i.height])))"
    )
    assert sizes == [[24, 12, "contain", 112, 112]] * 54
    places = "[...document.querySelectorAll('.gallery figure')].map(f => [f.children[0], f.children[1]]"
    places += ".map(e => e.getBoundingClientRect()).flatMap(r => [r.top, r.bottom, r.left, r.right]))"
    for _, bottom, left, _, top, _, _, right in shown.value(places):
        assert bottom <= top
        assert right - left <= width


@pytest.mark.parametrize("width", [360, 768, 1600])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_never_wider_than_the_window(
    shown: Browser, pages: Mapping[str, Path], name: str, width: int
) -> None:
    shown.open(pages[name], width=width)
    assert shown.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", PAGES)
def test_nothing_runs_off_the_paper(shown: Browser, pages: Mapping[str, Path], name: str) -> None:
    shown.open(pages[name], width=SHEET, media="print")
    ends = "[...document.querySelectorAll('td, th, img, dd')].map(e => e.getBoundingClientRect().right)"
    assert max(shown.value(ends)) <= SHEET


def test_names_are_no_stacks_of_letters_on_a_telephone(shown: Browser, pages: Mapping[str, Path]) -> None:
    shown.open(pages["many"], width=400)
    widths = "[...document.querySelectorAll('td:first-child')].map(e => e.getBoundingClientRect().width)"
    assert min(shown.value(widths)) >= 100
    assert shown.value("Math.max(...[...document.images].map(i => i.getBoundingClientRect().right))") <= 400


@pytest.mark.parametrize(("width", "media"), [(360, ""), (768, ""), (1200, ""), (SHEET, "print")])
def test_no_setting_breaks_inside_its_name(shown: Browser, pages: Mapping[str, Path], width: int, media: str) -> None:
    shown.open(pages["one"], width=width, media=media)
    shown.value("globalThis.lines = e => { const r = new Range(); r.selectNodeContents(e); return r.getClientRects() }")
    lines = shown.value("[...document.querySelectorAll('.long dt')].map(e => [e.textContent, lines(e).length])")
    assert ["train.check_replicas_every_steps", 1] in lines
    assert [name for name, number in lines if number > 1] == []


@pytest.mark.parametrize("name", PAGES)
def test_it_can_be_printed(shown: Browser, pages: Mapping[str, Path], name: str) -> None:
    shown.open(pages[name])
    paper = shown.paper()
    assert paper.startswith(b"%PDF")
    most = 12 if "gallery" in pages[name].read_text().partition("<body>")[2] else 8
    assert 1 <= len(re.findall(rb"/Type /Page\b", paper)) <= most


def test_text_of_strangers_runs_nothing(shown: Browser, pages: Mapping[str, Path]) -> None:
    for name in ("one", "hostile"):
        shown.open(pages[name])
        assert shown.value("document.title").startswith("Run ")
        assert shown.value("document.scripts.length") == 0
        assert "onerror" in shown.value("document.body.innerText")


def test_what_is_wrong_with_a_page_would_be_seen(shown: Browser, tmp_path: Path) -> None:
    bad = "<img src='http://127.0.0.1:9/x.png'><script>console.error('no'); document.title='owned'</script>"
    (tmp_path / "bad.html").write_text(bad + "<div style='width: 3000px'>wide</div>")
    shown.open(tmp_path / "bad.html")
    assert "no" in str(shown.said)
    assert shown.asked == ["http://127.0.0.1:9/x.png"]
    assert shown.value("document.title") == "owned"
    assert shown.value("document.documentElement.scrollWidth") > 1200


@pytest.mark.parametrize(("width", "media"), [(360, ""), (768, ""), (1200, ""), (SHEET, "print")])
def test_no_cell_breaks_inside_a_word(shown: Browser, pages: Mapping[str, Path], width: int, media: str) -> None:
    """Each word of letters stands on one line."""
    shown.open(pages["many"], width=width, media=media)
    broken = shown.value(
        "[...document.querySelectorAll('td, th')].flatMap(cell => { const broken = []; "
        "const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT); "
        "while (texts.nextNode()) { for (const word of texts.currentNode.data.matchAll(/[A-Za-z]+/g)) { "
        "const range = new Range(); range.setStart(texts.currentNode, word.index); "
        "range.setEnd(texts.currentNode, word.index + word[0].length); "
        "if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) broken.push(word[0]) } } "
        "return broken })"
    )
    assert broken == []
