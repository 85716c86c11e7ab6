"""MNIST and FashionMNIST: where they are looked for, how they are downloaded, what is refused."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dagfisher import datasets
from dagfisher.datasets import DataError, Split, download, idx, mnist
from dagfisher.errors import DagFisherWarning

SPLITS: tuple[Split, ...] = ("train", "valid", "test")

IMAGES = {
    mnist.TRAIN: np.random.default_rng(0).integers(0, 256, (12_000, 2, 2), dtype=np.uint8),
    mnist.TEST: np.random.default_rng(1).integers(0, 256, (30, 2, 2), dtype=np.uint8),
}
LABELS = {
    mnist.TRAIN_LABELS: np.random.default_rng(2).integers(0, 10, 12_000, dtype=np.uint8),
    mnist.TEST_LABELS: np.random.default_rng(3).integers(0, 10, 30, dtype=np.uint8),
}
PAYLOADS = {name: idx.encode(array) for name, array in (IMAGES | LABELS).items()}
EVERY_FILE = sorted(f"{name}.gz" for name in PAYLOADS)


class Server(http.server.ThreadingHTTPServer):
    """A mirror on this machine: serves ``files``, remembers what it was asked for."""

    files: dict[str, bytes]
    cut: int | None
    asked: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with Server(("127.0.0.1", 0), Handler) as running:
        running.files = {f"/good/{name}.gz": gzip.compress(payload) for name, payload in PAYLOADS.items()}
        running.cut, running.asked = None, []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def source(server: Server) -> mnist.Source:
    digests, label_digests = (
        {name: hashlib.sha256(PAYLOADS[name]).hexdigest() for name in names} for names in (IMAGES, LABELS)
    )
    mirrors = (f"{server.url}absent/", f"{server.url}good/")
    return mnist.Source("made", digests, label_digests, mirrors, megabytes=0.1)


def write(folder: Path, *names: str, compressed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(PAYLOADS[name]))
        else:
            (folder / name).write_bytes(PAYLOADS[name])


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "dagfisher" / "made"


def test_a_download_goes_to_the_cache_and_is_used_from_there(source: mnist.Source, server: Server, cache: Path) -> None:
    first = mnist.load(source, "C", may_download=True)
    assert files(cache) == EVERY_FILE
    pairs = (mnist.TRAIN, mnist.TRAIN_LABELS, mnist.TEST, mnist.TEST_LABELS)
    assert server.asked == [f"/{side}/{name}.gz" for name in pairs for side in ("absent", "good")]
    second = mnist.load(source, "C", may_download=False)
    assert len(server.asked) == 8
    assert first.sizes == second.sizes == (2_000, 10_000, 30)
    assert torch.equal(torch.cat([second.train, second.valid]), torch.from_numpy(IMAGES[mnist.TRAIN]).flatten(1))
    assert torch.equal(second.test, torch.from_numpy(IMAGES[mnist.TEST]).flatten(1))


def test_only_what_is_missing_is_downloaded(source: mnist.Source, server: Server, cache: Path) -> None:
    write(cache, mnist.TRAIN, mnist.TEST_LABELS)
    data = mnist.load(source, "B", may_download=True)
    assert server.asked == [f"/absent/{mnist.TEST}.gz", f"/good/{mnist.TEST}.gz"]
    assert data.train_labels is None and data.valid_labels is None and data.test_labels is not None


def test_labels_go_with_their_images(source: mnist.Source) -> None:
    data = mnist.load(source, "B", may_download=True)
    assert data.train_labels is not None and data.valid_labels is not None and data.test_labels is not None
    together = torch.cat([data.train_labels, data.valid_labels])
    assert together.tolist() == LABELS[mnist.TRAIN_LABELS].tolist() and len(data.train_labels) == 2_000
    assert data.test_labels.tolist() == LABELS[mnist.TEST_LABELS].tolist()
    assert data.test_labels.dtype == torch.int64


def test_images_without_labels_are_used_without_them(source: mnist.Source, server: Server, cache: Path) -> None:
    write(cache, *IMAGES)
    data = mnist.load(source, "B", may_download=True)
    assert data.sizes == (2_000, 10_000, 30) and server.asked == []
    assert [data.labels(split) for split in SPLITS] == [None] * 3


@pytest.mark.parametrize("content", [None, b"<html>moved</html>"], ids=["absent", "rubbish"])
def test_labels_that_cannot_be_downloaded_are_a_warning(
    source: mnist.Source, server: Server, cache: Path, content: bytes | None
) -> None:
    for name in LABELS:
        del server.files[f"/good/{name}.gz"]
        if content is not None:
            server.files[f"/good/{name}.gz"] = content
    with pytest.warns(DagFisherWarning, match=r"made is without labels: .*-labels-idx1-ubyte.gz could not be") as told:
        data = mnist.load(source, "B", may_download=True)
    assert len(told) == 2 and data.sizes == (2_000, 10_000, 30) and data.train_labels is None
    assert files(cache) == [f"{mnist.TEST}.gz", f"{mnist.TRAIN}.gz"]


def test_labels_that_are_damaged_are_named(source: mnist.Source, server: Server, cache: Path) -> None:
    write(cache, *IMAGES)
    path = cache / mnist.TEST_LABELS
    path.write_bytes(PAYLOADS[mnist.TRAIN_LABELS])
    with pytest.raises(DataError, match=rf"{mnist.TEST_LABELS} .*its SHA-256 differs.*; delete it and fetch it again"):
        mnist.load(source, "B", may_download=True)


@pytest.mark.parametrize("compressed", [True, False])
def test_the_named_folder_comes_before_the_cache(
    source: mnist.Source,
    server: Server,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compressed: bool,
) -> None:
    monkeypatch.setenv("DAGFISHER_DATA", str(tmp_path / "mine"))
    write(tmp_path / "mine" / "made", *IMAGES, compressed=compressed)
    cache.mkdir(parents=True)
    (cache / f"{mnist.TRAIN}.gz").write_bytes(b"never read")
    assert mnist.load(source, "B", may_download=True).sizes == (2_000, 10_000, 30)
    assert server.asked == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(PAYLOADS[mnist.TRAIN])[:5000], "damaged or truncated gzip file .* fetch it again"),
        (gzip.compress(PAYLOADS[mnist.TEST]), "its SHA-256 differs.*; delete it and fetch it again"),
        (gzip.compress(idx.encode(np.arange(9, dtype=np.uint8))), "its SHA-256 differs"),
        (b"", "its SHA-256 differs"),
    ],
    ids=["truncated", "other images", "labels", "empty"],
)
def test_a_damaged_file_is_named_and_not_replaced(
    source: mnist.Source, server: Server, cache: Path, content: bytes, message: str
) -> None:
    write(cache, mnist.TEST)
    path = cache / f"{mnist.TRAIN}.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        mnist.load(source, "B", may_download=True)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content
    assert server.asked == []


def test_a_download_that_breaks_off_leaves_nothing(source: mnist.Source, server: Server, cache: Path) -> None:
    server.cut = 1000
    with pytest.raises(DataError, match=r"could not be downloaded .*404.*1,000 of .* bytes.* or put the file at"):
        mnist.load(source, "B", may_download=True)
    assert files(cache) == []


def test_a_download_with_other_content_leaves_nothing(source: mnist.Source, server: Server, cache: Path) -> None:
    server.files[f"/good/{mnist.TRAIN}.gz"] = gzip.compress(PAYLOADS[mnist.TEST])
    with pytest.raises(DataError, match=r"could not be downloaded .*404.*something else, or damaged"):
        mnist.load(source, "B", may_download=True)
    assert files(cache) == []


def test_the_next_mirror_is_tried_when_one_sends_rubbish(source: mnist.Source, server: Server, cache: Path) -> None:
    server.files |= {f"/absent/{name}.gz": b"<html>moved</html>" for name in PAYLOADS}
    assert mnist.load(source, "B", may_download=True).sizes == (2_000, 10_000, 30)
    assert files(cache) == EVERY_FILE


def test_an_interrupted_download_leaves_nothing(server: Server, tmp_path: Path) -> None:
    def interrupt(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "target" / "file.gz"
    with pytest.raises(KeyboardInterrupt):
        download.fetch([f"{server.url}good/{mnist.TRAIN}.gz"], target, "", interrupt)
    assert files(target.parent) == []


def test_a_failed_download_keeps_what_was_there(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.gz"
    target.write_bytes(b"before")
    with pytest.raises(DataError, match="could not be downloaded"):
        download.fetch([f"{server.url}nowhere"], target, "")
    assert files(tmp_path) == ["file.gz"] and target.read_bytes() == b"before"


def test_no_server_at_all_is_one_sentence(tmp_path: Path, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    with pytest.raises(DataError, match=r"could not be downloaded \(http://127.0.0.1.*refused"):
        download.fetch([url], tmp_path / "file.gz", "")


def test_a_cache_that_cannot_be_written_is_one_sentence(
    source: mnist.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written \(Not a directory\); set XDG_CACHE_HOME"):
        mnist.load(source, "B", may_download=True)


def test_progress_is_told_and_ends_with_everything(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    content = server.files[f"/good/{mnist.TRAIN}.gz"] = bytes(200_000)
    digest = hashlib.sha256(content).hexdigest()
    url = f"{server.url}good/{mnist.TRAIN}.gz"
    download.fetch([url], tmp_path / "file.gz", digest, lambda *step: told.append(step))
    done = [step[1] for step in told]
    assert done == sorted(done) and len(done) > 1
    assert told[-1] == ("file.gz", len(content), len(content))


def test_progress_is_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for done in (1_000_000, 2_000_000):
        download.show_progress("file.gz", done, 2_000_000)
    assert capsys.readouterr().err == "downloading file.gz: 100% of 2.0 MB\n"


def test_progress_is_live_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    download.show_progress("file.gz", 500_000, 2_000_000)
    download.show_progress("file.gz", 2_000_000, 2_000_000)
    download.show_progress("file.gz", 700_000, 0)
    assert capsys.readouterr().err == (
        "\rdownloading file.gz:  25% of 2.0 MB\rdownloading file.gz: 100% of 2.0 MB\n\rdownloading file.gz: 0.7 MB"
    )


def test_without_permission_to_download_the_remedy_names_the_folders(
    source: mnist.Source, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGFISHER_DATA", str(tmp_path))
    with pytest.raises(DataError, match="made is not here; allow its download, or put") as caught:
        mnist.load(source, "B", may_download=False)
    assert str(tmp_path / "made") in str(caught.value) and server.asked == []


def test_a_data_folder_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGFISHER_DATA", "no/such/folder")
    with pytest.raises(DataError, match="DAGFISHER_DATA names no/such/folder, which is not a folder"):
        datasets.load("mnist")
    assert {line.name: line.found for line in datasets.available()}["mnist"] is False


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "home/.cache/dagfisher"),
        ("linux", {"XDG_CACHE_HOME": "elsewhere"}, "elsewhere/dagfisher"),
        ("darwin", {}, "home/Library/Caches/dagfisher"),
        ("win32", {}, "home/AppData/Local/dagfisher/Cache"),
        ("win32", {"LOCALAPPDATA": "local"}, "local/dagfisher/Cache"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], expected: str
) -> None:
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert download.cache_folder() == Path(expected)


@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion-mnist", 0.2860)])
def test_the_real_files_are_split_as_documented(real_data: Path, name: str, mean: float) -> None:
    b, c = datasets.load(name, "B", may_download=False), datasets.load(name, "C", may_download=False)
    grey = torch.from_numpy(np.array(idx.read(real_data / name / f"{mnist.TRAIN}.gz"))).flatten(1)
    assert b.sizes == c.sizes == (50_000, 10_000, 10_000)
    assert (b.shape, b.label, c.label) == ((28, 28), f"{name} B", f"{name} C")
    assert torch.equal(c.train, grey[:50_000]) and torch.equal(c.valid, grey[50_000:])
    assert torch.equal(b.train, grey[:50_000] >= 128) and b.train.dtype == torch.bool
    assert float(grey.float().mean() / 255) == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize(("name", "nats"), [("mnist", 45.5), ("fashion-mnist", 189.9)])
def test_pixels_drawn_from_grey_values_have_the_entropy_that_the_corrections_name(
    real_data: Path, name: str, nats: float
) -> None:
    means = torch.from_numpy(np.array(idx.read(real_data / name / f"{mnist.TEST}.gz"))).flatten(1).double() / 255
    entropy = -(torch.xlogy(means, means) + torch.xlogy(1 - means, 1 - means)).sum(1).mean()
    assert float(entropy) == pytest.approx(nats, abs=0.05)


@pytest.mark.parametrize(("name", "first"), [("mnist", [5, 0, 4, 1, 9]), ("fashion-mnist", [9, 0, 0, 3, 0])])
def test_the_real_labels_are_those_of_their_images(real_data: Path, name: str, first: list[int]) -> None:
    data = datasets.load(name, may_download=False)
    for split, size in zip(SPLITS, data.sizes, strict=True):
        labels = data.labels(split)
        assert labels is not None and labels.shape == (size,) and labels.unique().tolist() == list(range(10))
    assert data.train_labels is not None and data.train_labels[:5].tolist() == first
    assert data.test_labels is not None and data.test_labels.bincount().sum() == 10_000
