"""Reading one image file by a path that a manifest gives: never outside the root, never an unbounded read."""

import errno
import os
import posixpath
import stat
from dataclasses import dataclass
from typing import Any

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.locations import file_state
from congruence.tasks.encoders.errors import InvalidRow

_FAULTS_OF_THE_NAME = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EINVAL)


@dataclass(frozen=True)
class ImageFolder:
    """The folder below which every path of a split must stay, symbolic links followed."""

    filesystem: Any
    root: str
    local: bool
    max_bytes: int

    def read(self, name: str) -> bytes:
        """The content of the file ``name`` below the root.

        Raises:
            InvalidRow: the path leaves the root, or no regular file of bounded size lies there.
        """
        path = self._resolve(name)
        try:
            return self._read_local(path, name) if self.local else self._read_remote(path, name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InvalidRow(f"file {name!r} does not exist") from error
        except IsADirectoryError as error:
            raise InvalidRow(f"{name!r} is a folder, not an image file") from error
        except PermissionError as error:
            raise InvalidRow(f"file {name!r} may not be read: permission denied") from error

    def read_range(self, file: str, offset: int, length: int) -> bytes:
        """Bytes of a file that the split itself names.

        Raises:
            InvalidRow: too many of them.
            SplitError: the file ends before.
        """
        if length > self.max_bytes:
            raise InvalidRow(f"the image has {length} bytes, more than max_input_bytes = {self.max_bytes}")
        data = bytes(self.filesystem.cat_file(file, start=offset, end=offset + length)) if length else b""
        if len(data) < length:
            raise SplitError(f"{file}: is cut off at byte {offset + len(data)}; fetch the file again")
        return data

    def state(self, name: str) -> str:
        """What tells whether the file changed without reading it: size, times and inode, or the object's ETag."""
        try:
            path = self._resolve(name)
            return file_state(self.filesystem, path, self.local)
        except InvalidRow as invalid:
            return invalid.reason
        except OSError as error:
            return type(error).__name__

    def _resolve(self, name: str) -> str:
        if not name or "\x00" in name:
            raise InvalidRow(f"{name!r} is not a file name")
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\", "~")) or "://" in name or parts[0].endswith(":"):
            raise InvalidRow(f"path {name!r} is absolute; paths are relative to the image root and stay below it")
        if ".." in parts:
            raise InvalidRow(f"path {name!r} leaves the image root")
        if not self.local:
            return posixpath.join(self.root, name)
        root = os.path.realpath(self.root)
        try:
            path = os.path.realpath(os.path.join(root, name))
        except (OSError, ValueError) as error:
            raise InvalidRow(f"path {name!r} cannot be resolved: {error}") from error
        if os.path.commonpath([root, path]) != root:
            raise InvalidRow(f"path {name!r} is a link that leaves the image root")
        return path

    def _read_local(self, path: str, name: str) -> bytes:
        # The path is already free of links; O_NOFOLLOW refuses one put there since, O_NONBLOCK a pipe that never ends.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _FAULTS_OF_THE_NAME:
                raise InvalidRow(f"file {name!r} cannot be opened: {error.strerror}") from error
            raise
        with os.fdopen(descriptor, "rb") as stream:
            state = os.fstat(descriptor)
            if stat.S_ISDIR(state.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(state.st_mode):
                raise InvalidRow(f"{name!r} is not a regular file")
            self._require_bounded(state.st_size, name)
            return stream.read()

    def _read_remote(self, path: str, name: str) -> bytes:
        self._require_bounded(int(self.filesystem.info(path)["size"]), name)
        return bytes(self.filesystem.cat_file(path))

    def _require_bounded(self, size: int, name: str) -> None:
        if size > self.max_bytes:
            raise InvalidRow(f"file {name!r} has {size} bytes, more than max_input_bytes = {self.max_bytes}")
