"""The user's package index as a build sees it: what of it is on this machine's disk is served on loopback."""

import io
import re
import runpy
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

INSTALL = runpy.run_path(str(Path(__file__).parents[2] / "infra" / "install.py"))
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class _Files(SimpleHTTPRequestHandler):
    """A folder, also in parts: uv reads the end of a wheel to learn what it needs."""

    protocol_version = "HTTP/1.1"

    def send_head(self) -> Any:
        asked = RANGE.fullmatch(self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            return super().send_head()
        size = path.stat().st_size
        first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
        last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        self.send_response(206)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(first)
            return io.BytesIO(file.read(last - first + 1))

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def pip_settings(folder: Path, *, own_index: bool = True) -> Iterator[Path]:
    """A file with those of the user's pip settings that say where packages are, or how the default index is reached."""
    known = {name: value for name, value in INSTALL["pip_settings"]().items() if name in INSTALL["PLACES"]}
    with ExitStack() as open_until_built:
        for name in {"index-url", "extra-index-url", "find-links"} & set(known):
            places = known.pop(name).split()
            if own_index:
                known[name] = " ".join(open_until_built.enter_context(_served(place)) for place in places)
        file = folder / "pip.conf"
        file.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in known.items()))
        yield file


@contextmanager
def _served(place: str) -> Iterator[str]:
    """An address for a folder of this machine, open while it is used; other addresses as they are."""
    path = Path(place.removeprefix("file://"))
    if not path.is_dir():
        yield place
        return
    # The pages of an index point to files beside its folder.
    root, page = (path.parent, f"{path.name}/") if path.name == "simple" else (path, "")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{page}"
        finally:
            server.shutdown()
